"""The service over HTTP: the application, its routes and wires, and what every request passes.

uvicorn.run(create_app(ServiceConfig()), port=8000)

app             the application                        server        runs it until it is told to stop
routes          one file for each wire                 problems      every refusal, with what to do
request_guard   what every request passes              request_body  reads a body within limits
header_timeout  closes connections that send nothing   openapi       the description of the routes
late_answer     answers that many requests wait for    disconnect    waits only while somebody is there
"""
