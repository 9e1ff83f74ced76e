"""API keys in both databases."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from gavel.judge.service.errors import NotFoundError
from gavel.judge.service.schemas.records import KeyScope, key_id_of, token_hash
from gavel.judge.service.store.database import Database
from gavel.judge.service.store.key_store import KeyStore, settings_key_id
from gavel.judge.service.store.tables import keys

pytestmark = pytest.mark.slow


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database.open(database_url)
    yield database
    database.close()


def test_a_key_is_stored_by_its_hash_and_revoked_once(database: Database):
    store = KeyStore(database)
    token, made = store.create("trainer", KeyScope(projects=["desk"], max_cost_usd=5))
    (key,) = store.all_now()
    assert key == made
    assert (key.id, key.token_hash) == (key_id_of(token), token_hash(token))
    store.revoke(key.id)
    assert store.all_now()[0].revoked_at is not None
    with pytest.raises(NotFoundError):
        store.revoke(key.id)


async def test_a_key_of_the_settings_is_filed_again_with_what_it_has_spent(database: Database):
    store, key_id = KeyStore(database), settings_key_id("ci")
    await store.file({key_id: KeyScope(projects=["desk"])})
    await database.write(lambda connection: connection.execute(sa.update(keys).values(spent_usd=1.5)).close())
    await store.file({key_id: KeyScope(projects=["lab"]), settings_key_id("other"): KeyScope()})
    found = {key.name: key for key in await store.all()}
    assert found.keys() == {"ci", "other"}
    assert (found["ci"].scope.projects, found["ci"].spent_usd, found["ci"].token_hash) == (["lab"], 1.5, "")
