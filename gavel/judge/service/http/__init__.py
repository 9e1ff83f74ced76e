"""The service over HTTP: the application, its routes and wires, and the checks on every request.

uvicorn.run(create_app(ServiceConfig()), port=8000)

app       the application                              server    runs it until it is told to stop
scores    the routes under /v1                         wires     those of other systems
requests  who asks, the body, and refusals             pages     what people look at
"""
