"""Message brokers, libraries of sockets, remote calls."""

from .site import OWN_CALLS, Program, until


def mosquitto(site):
    return ["mosquitto", "-c", site.file("conf", f"""
listener {site.port} {site.address}
allow_anonymous true
user mosquitto
log_dest stderr
log_type all
""")]


def published(site):
    where = ["-h", site.address, "-p", str(site.port), "-t", "topic", "-q", "2"]
    got = site.directory / "got"
    with open(got, "w") as out:
        subscriber = site.beside(site.lab.far, ["mosquitto_sub", *where, "-i", "sub", "-c", "-C", "200"], accel=site.on[1], stdout=out)
        until(lambda: "Sending SUBACK to sub" in site.log.read_text(), "a subscriber")
        site.client("mosquitto_pub", *where, "-l", text="".join(f"message {i} {'x' * (i * 20)}\n" for i in range(200)))
        subscriber.wait(30)
    text = got.read_text()
    assert text.count("message ") == 200, text[-500:]
    return text


ZMQ_SERVER = """
import sys, zmq
context = zmq.Context()
replies, news = context.socket(zmq.REP), context.socket(zmq.PUB)
replies.bind(f"tcp://{sys.argv[1]}:{int(sys.argv[2]) + 1}"); news.bind(f"tcp://{sys.argv[1]}:{sys.argv[2]}")
while True:
    request = replies.recv()
    replies.send(request[::-1]); news.send(b"news of " + request)
"""
ZMQ_CLIENT = """
import sys, zmq
context = zmq.Context()
asks, news = context.socket(zmq.REQ), context.socket(zmq.SUB)
for s in (asks, news): s.setsockopt(zmq.RCVTIMEO, 20000)
asks.connect(f"tcp://{sys.argv[1]}:{int(sys.argv[2]) + 1}"); news.connect(f"tcp://{sys.argv[1]}:{sys.argv[2]}")
news.setsockopt(zmq.SUBSCRIBE, b"")
heard = False
while not heard:  # a subscription takes effect when it has arrived
    asks.send(b"first"); asks.recv(); heard = news.poll(100)
while news.poll(300): news.recv()
for i in range(300):
    asks.send(b"request %d " % i + bytes(i * 50)); print(len(asks.recv()), len(news.recv()))
"""


def zmq(site):
    return ["/usr/bin/python3", "-c", ZMQ_SERVER, site.address, site.port]


GRPC_SERVER = """
import sys, grpc
from concurrent import futures
def many(request, context):
    for i in range(100): yield request * i
handlers = {"Echo": grpc.unary_unary_rpc_method_handler(lambda request, context: request[::-1]),
            "Many": grpc.unary_stream_rpc_method_handler(many)}
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", handlers),))
assert server.add_insecure_port(f"{sys.argv[1]}:{sys.argv[2]}")
server.start(); server.wait_for_termination()
"""
GRPC_CLIENT = """
import sys, grpc
with grpc.insecure_channel(f"{sys.argv[1]}:{sys.argv[2]}") as channel:
    echo, many = channel.unary_unary("/test.Test/Echo"), channel.unary_stream("/test.Test/Many")
    for i in range(100): print(echo(b"ab" * i, timeout=20))
    together = [echo.future(b"%d" % i, timeout=20) for i in range(100)]
    print([f.result() for f in together])
    print([len(m) for m in many(b"x" * 500, timeout=20)])
"""


def grpc(site):
    return ["/usr/bin/python3", "-c", GRPC_SERVER, site.address, site.port]


def nng(site):
    return ["nngcat", "--rep0", "--listen", f"tcp://{site.address}:{site.port}", "--data", "answer " * 500]


def asked(site):
    got = "".join(site.client("nngcat", "--req0", "--dial", f"tcp://{site.address}:{site.port}", "--raw", "--data", f"request {i}")
                  for i in range(10))
    assert got.count("answer") == 5000, got
    return got


RABBIT_CLIENT = """
import sys, pika
connection = pika.BlockingConnection(pika.ConnectionParameters(sys.argv[1], int(sys.argv[2])))
channel = connection.channel()
channel.queue_declare("q"); channel.confirm_delivery()
for i in range(200): channel.basic_publish("", "q", b"%d " % i + bytes(i * 30))
for i in range(200):
    method, properties, body = channel.basic_get("q", auto_ack=True)
    print(body.split()[0], len(body))
connection.close()
"""


def rabbitmq(site):
    site.file("conf.conf", f"listeners.tcp.1 = {site.address}:{site.port}\nloopback_users = none\n")
    site.file("plugins", "[].")
    site.give_to("rabbitmq")
    settings = {"RABBITMQ_NODENAME": "test@localhost", "RABBITMQ_CONFIG_FILE": f"{site.directory}/conf", "HOME": site.directory,
                "RABBITMQ_MNESIA_BASE": f"{site.directory}/data", "RABBITMQ_LOG_BASE": f"{site.directory}/log",
                "RABBITMQ_ENABLED_PLUGINS_FILE": f"{site.directory}/plugins", "RABBITMQ_PID_FILE": f"{site.directory}/pid",
                "RABBITMQ_CONF_ENV_FILE": "/dev/null", "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": "25672"}
    return site.as_user("rabbitmq", ["env", *(f"{k}={v}" for k, v in settings.items()), "/usr/lib/rabbitmq/bin/rabbitmq-server"])


BEANSTALK_CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20); f = s.makefile("rwb")
def ask(words, body=b""):
    f.write(words + b"\\r\\n" + (body + b"\\r\\n" if body else b"")); f.flush()
    return f.readline().strip()
for i in range(100): print(ask(b"put 0 0 60 %d" % (100 + i * 20), b"x" * (100 + i * 20)))
for i in range(100):
    head = ask(b"reserve"); print(head, len(f.read(int(head.split()[2]) + 2))); print(ask(b"delete " + head.split()[1]))
"""


def beanstalkd(site):
    return ["beanstalkd", "-l", site.address, "-p", site.port, "-u", "nobody"]


NATS_CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20); f = s.makefile("rwb")
f.readline()
f.write(b"CONNECT {\\"verbose\\":false}\\r\\nSUB news 1\\r\\nPING\\r\\n"); f.flush(); print(f.readline())
for i in range(100):
    f.write(b"PUB news %d\\r\\n%s\\r\\n" % (i * 20, b"x" * i * 20)); f.flush(); print(f.readline(), len(f.read(i * 20 + 2)))
"""


def nats(site):
    return ["nats-server", "-a", site.address, "-p", site.port]


def python_client(script):
    return lambda site: site.python(script)


PROGRAMS = [
    Program("mosquitto", "mosquitto", 1883, mosquitto, published, needs=("mosquitto_sub",), environment=("ACCEL_EARLY_PORTS=1",),
            client_share=0.3),  # two clients, of which the first has the device's queue
    Program("libzmq", "python3-zmq", 5555, zmq, python_client(ZMQ_CLIENT)),
    Program("grpc", "python3-grpcio", 50051, grpc, python_client(GRPC_CLIENT)),
    Program("nng", "nng-utils", 5556, nng, asked, client_share=0.6),
    Program("rabbitmq", "rabbitmq-server", 5672, rabbitmq, python_client(RABBIT_CLIENT)),
    Program("beanstalkd", "beanstalkd", 11300, beanstalkd, python_client(BEANSTALK_CLIENT)),
    Program("nats", "nats-server", 4222, nats, python_client(NATS_CLIENT), server_kernel=OWN_CALLS),
]
