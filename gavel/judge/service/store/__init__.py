"""The service's database: SQLite, or PostgreSQL shared by several processes.

record = await Store(Database.open("gavel.db")).get(judgement_id)

database         one writer thread with group commit     tables, migrations  what is in it
judgement_store  judgements                              reply_store         the judge models' replies
group_store      groups whose members arrive one by one  key_store           API keys
leases           which process judges what               notices             word between processes
outages          what databases' errors mean             connections         to SQLite and PostgreSQL
write_probe      whether the database can be written     sqlite_place        whether SQLite's file can be there
"""
