"""The service's database: SQLite, or PostgreSQL shared by several processes.

record = await Store(Database.open("gavel.db")).get(judgement_id)

database         one writer thread with group commit     tables       what is in it, and its version
judgement_store  judgements                              reply_store  the judge models' replies
group_store      groups whose members arrive one by one  leases        which process judges what
"""
