"""The service over HTTP: the application, its routes and wires, and what every request passes.

uvicorn.run(create_app(ServiceConfig()), port=8000)

app             the application                        server        runs it until it is told to stop
routes          one file for each wire                 problems      every refusal, with what to do
pages           what people look at
request_guard   what every request passes              request_body  reads a body within limits
strict_json     refuses JSON that readers differ on    openapi       the description of the routes
late_answer     answers that many requests wait for    disconnect    waits only while somebody is there
bounded_connection  closes connections that are too slow, or send too much around a body
"""
