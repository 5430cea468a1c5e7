// Java's ways to a network, for java_app.py: threads with blocking sockets, selectors (epoll), datagrams, an HTTP server and its client.
//   java Traffic.java serve ADDRESS PORT      four services from PORT on; says "ready"
//   java Traffic.java call ADDRESS PORT       uses each, and says "done" when all that came back is right
import com.sun.net.httpserver.HttpServer;
import java.io.DataInputStream;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.channels.DatagramChannel;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;

public class Traffic {
  static final int MOST = 1 << 16;

  static void background(java.util.concurrent.Callable<Void> work) {
    Thread t = new Thread(() -> {
      try {
        work.call();
      } catch (Exception e) {
        e.printStackTrace();
      }
    });
    t.setDaemon(true);
    t.start();
  }

  static Void blocking(ServerSocket listener) throws Exception {
    for (;;) {
      Socket s = listener.accept();
      background(() -> {
        try (s) {
          s.getInputStream().transferTo(s.getOutputStream());
        }
        return null;
      });
    }
  }

  static Void selecting(ServerSocketChannel listener, DatagramChannel datagrams) throws Exception {
    Selector selector = Selector.open();
    listener.configureBlocking(false).register(selector, SelectionKey.OP_ACCEPT);
    datagrams.configureBlocking(false).register(selector, SelectionKey.OP_READ);
    ByteBuffer one = ByteBuffer.allocateDirect(MOST);
    for (;;) {
      selector.select();
      for (SelectionKey key : selector.selectedKeys()) {
        if (key.isAcceptable()) {
          SocketChannel s = listener.accept();
          if (s != null) s.configureBlocking(false).register(selector, SelectionKey.OP_READ, ByteBuffer.allocateDirect(MOST));
        } else if (key.channel() == datagrams) {
          one.clear();
          InetSocketAddress from = (InetSocketAddress) datagrams.receive(one);
          if (from != null) datagrams.send(one.flip(), from);
        } else {
          echo(key);
        }
      }
      selector.selectedKeys().clear();
    }
  }

  static void echo(SelectionKey key) throws Exception {
    SocketChannel s = (SocketChannel) key.channel();
    ByteBuffer held = (ByteBuffer) key.attachment();
    if (key.isReadable() && s.read(held) < 0) {
      s.close();
      return;
    }
    held.flip();
    s.write(held);
    held.compact();
    int wanted = held.position() > 0 ? SelectionKey.OP_WRITE : 0;
    key.interestOps(wanted | (held.hasRemaining() ? SelectionKey.OP_READ : 0));
  }

  static void serve(String address, int port) throws Exception {
    ServerSocket listener = new ServerSocket();
    listener.bind(new InetSocketAddress(address, port));
    background(() -> blocking(listener));
    ServerSocketChannel selected = ServerSocketChannel.open().bind(new InetSocketAddress(address, port + 1));
    DatagramChannel datagrams = DatagramChannel.open().bind(new InetSocketAddress(address, port + 2));
    background(() -> selecting(selected, datagrams));
    HttpServer http = HttpServer.create(new InetSocketAddress(address, port + 3), 0);
    http.setExecutor(Executors.newFixedThreadPool(4));
    http.createContext("/", exchange -> {
      byte[] body = exchange.getRequestBody().readAllBytes();
      exchange.sendResponseHeaders(200, body.length == 0 ? -1 : body.length);
      try (OutputStream out = exchange.getResponseBody()) {
        out.write(body);
      }
    });
    http.start();
    System.out.println("ready");
    Thread.currentThread().join();
  }

  static byte[] bytes(int seed, int size) {
    byte[] b = new byte[size];
    new Random(seed).nextBytes(b);
    return b;
  }

  static void check(boolean right, String what) {
    if (!right) throw new IllegalStateException(what);
  }

  static void stream(String address, int port, int seed) throws Exception {
    byte[] sent = bytes(seed, 300000);
    try (Socket s = new Socket(address, port)) {
      s.setTcpNoDelay(seed % 2 == 0);
      s.setSoTimeout(20000);
      background(() -> {
        s.getOutputStream().write(sent);
        s.shutdownOutput();
        return null;
      });
      byte[] got = new byte[sent.length];
      new DataInputStream(s.getInputStream()).readFully(got);
      check(Arrays.equals(sent, got) && s.getInputStream().read() == -1, "stream " + port);
    }
  }

  static void datagrams(String address, int port) throws Exception {
    try (DatagramChannel c = DatagramChannel.open()) {
      c.connect(new InetSocketAddress(address, port));
      c.socket().setSoTimeout(20000);
      for (int i = 0; i < 200; ++i) {
        byte[] sent = bytes(i, 1 + i * 7);
        c.write(ByteBuffer.wrap(sent));
        ByteBuffer got = ByteBuffer.allocate(MOST);
        c.read(got);
        check(ByteBuffer.wrap(sent).equals(got.flip()), "datagram " + i);
      }
    }
  }

  static void http(String address, int port) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    CompletableFuture<?>[] all = new CompletableFuture<?>[50];
    for (int i = 0; i < all.length; ++i) {
      byte[] sent = bytes(i, 1 + i * 2000);
      HttpRequest request = HttpRequest.newBuilder(URI.create("http://" + address + ":" + port + "/"))
          .POST(HttpRequest.BodyPublishers.ofByteArray(sent)).build();
      all[i] = client.sendAsync(request, HttpResponse.BodyHandlers.ofByteArray())
          .thenAccept(r -> check(r.statusCode() == 200 && Arrays.equals(sent, r.body()), "http"));
    }
    CompletableFuture.allOf(all).get();
  }

  public static void main(String[] args) throws Exception {
    String address = args[1];
    int port = Integer.parseInt(args[2]);
    if (args[0].equals("serve")) serve(address, port);
    for (int i = 0; i < 20; ++i) {
      stream(address, port, i);
      stream(address, port + 1, i);
    }
    datagrams(address, port + 2);
    http(address, port + 3);
    System.out.println("done");
    System.exit(0);
  }
}
