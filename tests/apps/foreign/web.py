"""HTTP: servers, application servers, caches, proxies."""
import hashlib

from .site import PAGE, Program

APPLICATION = """
def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [("%s %s %d\\n" % (environ["REQUEST_METHOD"], environ["PATH_INFO"], len(body))).encode() * 2000]
"""


def fetch(site, *paths, options=(), address=None):
    """Each path twice by one curl, over one connection if the server keeps it; the bodies' sum, statuses, sizes."""
    address = address or f"http://{site.address}:{site.port}"
    words = ["curl", "-sS", "--max-time", "30", *options, "-w", "\n%{http_code} %{size_download}\n"]
    output = site.client(*words, *(f"{address}{path}" for path in paths * 2))
    heads = [line for line in output.splitlines() if line[:4] in ("200 ", "404 ", "502 ", "503 ")]
    return f"{hashlib.sha256(output.encode()).hexdigest()[:16]} {heads}"


def pages(site):
    return fetch(site, "/page", "/small", "/absent") + fetch(site, "/page", options=("-H", "Connection: close"))


def posts(site):
    body = site.file("body", "x" * 100000)
    return fetch(site, "/some/path") + fetch(site, "/", options=("-H", "Expect:", "--data-binary", f"@{body}"))


def documents(site):
    site.file("www/page", PAGE)
    site.file("www/small", "small\n")
    return site.directory / "www"


def lighttpd(site):
    return ["lighttpd", "-D", "-f", site.file("conf", f"""
server.document-root = "{documents(site)}"
server.bind = "{site.address}"
server.port = {site.port}
server.username = "www-data"
server.groupname = "www-data"
""")]


def apache(site):
    modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in ("mpm_event", "authz_core"))
    return ["apache2", "-DFOREGROUND", "-d", site.directory, "-f", site.file("conf", f"""{modules}
ServerName test
PidFile {site.directory}/pid
DefaultRuntimeDir {site.directory}
ErrorLog {site.directory}/log
Listen {site.address}:{site.port}
User www-data
Group www-data
StartServers 2
ThreadsPerChild 8
MaxRequestWorkers 16
DocumentRoot {documents(site)}
""")]


def gunicorn(site):
    site.file("app.py", APPLICATION)
    return ["gunicorn", "--workers", "2", "--bind", f"{site.address}:{site.port}", "--user", "www-data", "--group", "www-data",
            "--pythonpath", site.directory, "app"]


def uwsgi(site):
    app = site.file("app.py", APPLICATION)
    return site.as_user("www-data", ["uwsgi_python3", "--http-socket", f"{site.address}:{site.port}", "--wsgi-file", app, "--master",
                                     "--processes", "2", "--need-app", "--die-on-term"], workers=2)


def php_fpm(site):
    """nginx at the other host is its client, curl nginx's."""
    site.file("www/page.php", "<?php echo str_repeat($_SERVER['REQUEST_METHOD'] . ' ' . strlen(file_get_contents('php://input')) . PHP_EOL, 2000);")
    return ["php-fpm8.2", "--nodaemonize", "--fpm-config", site.file("conf", f"""
[global]
error_log = {site.directory}/log
[www]
user = www-data
group = www-data
listen = {site.address}:{site.port}
pm = static
pm.max_children = 2
""")]


def by_nginx(site):
    site.file("nginx.conf", f"""
daemon off; worker_processes 1; pid {site.directory}/nginx.pid; error_log {site.directory}/nginx.log; user www-data;
events {{ }}
http {{
  access_log off; client_body_temp_path {site.directory}/t; proxy_temp_path {site.directory}/t; fastcgi_temp_path {site.directory}/t;
  uwsgi_temp_path {site.directory}/t; scgi_temp_path {site.directory}/t;
  server {{
    listen 127.0.0.1:8080;
    location / {{ include /etc/nginx/fastcgi_params; fastcgi_pass {site.address}:{site.port};
                  fastcgi_param SCRIPT_FILENAME {site.directory}/www/page.php; }}
  }}
}}""")
    site.beside(site.lab.far, ["nginx", "-c", site.directory / "nginx.conf", "-p", site.directory], 8080, site.on[1],
                environment={"ACCEL_EARLY_PORTS": "1"})  # its workers give up root before they connect
    body = site.file("body", "x" * 100000)
    address = "http://127.0.0.1:8080"
    return "".join(fetch(site, "/page.php", address=address) + fetch(site, "/", options=("-H", "Expect:", "--data-binary", f"@{body}"), address=address)
                   for _ in range(2))


def origin(site):
    """What proxies fetch from: Python's server on the server's loopback, which is the kernel's."""
    site.beside(site.lab.near, ["/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", documents(site), "8000"], 8000)


def varnish(site):
    origin(site)
    return ["varnishd", "-F", "-j", "unix,user=vcache", "-a", f"{site.address}:{site.port}", "-s", "malloc,64m", "-n", site.directory / "n", "-f",
            site.file("conf", 'vcl 4.1;\nbackend default { .host = "127.0.0.1"; .port = "8000"; }\n'
                              "sub vcl_deliver { unset resp.http.Age; }\n")]


def squid(site):
    """-N: otherwise a child serves that squid starts under other ids than its real ones, where the dynamic linker heeds no LD_PRELOAD."""
    origin(site)
    site.give_to("proxy")
    return ["squid", "-N", "-f", site.file("conf", f"""
http_port {site.address}:{site.port}
http_access allow all
pid_filename {site.directory}/pid
cache_log {site.directory}/log
access_log none
coredump_dir {site.directory}
cache_mem 16 MB
shutdown_lifetime 0 seconds
pinger_enable off
visible_hostname test
""")]


def by_squid(site):
    proxy = ("-x", f"http://{site.address}:{site.port}")
    return fetch(site, "/page", "/small", options=proxy, address="http://127.0.0.1:8000") * 2


PROGRAMS = [
    Program("lighttpd", "lighttpd", 8080, lighttpd, pages),
    Program("apache", "apache2-bin", 8080, apache, pages, workers=2),
    Program("gunicorn", "gunicorn", 8080, gunicorn, posts, workers=2),
    Program("uwsgi", "uwsgi-plugin-python3", 8080, uwsgi, posts, workers=2),
    Program("php-fpm", "php8.2-fpm", 9000, php_fpm, by_nginx, needs=("nginx",), workers=2),
    Program("varnish", "varnish", 8080, varnish, pages),
    Program("squid", "squid", 3128, squid, by_squid, environment=("ACCEL_EARLY_PORTS=1",)),
]
