import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.ServerSocket;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;
import org.apache.activemq.artemis.jms.client.ActiveMQConnectionFactory;
import org.apache.activemq.artemis.nativo.jlibaio.LibaioContext;

/** Artemis, or its clients, as a program of `benchmarks.peers`: what it is asked and says is in `benchmarks/peers/systems.py`. */
public final class Artemis {
    private static final int CONSUMER_SESSIONS = 10;
    private static final long DRAIN_NS = 60_000_000_000L;

    private static final AtomicLong number = new AtomicLong();
    private static final AtomicLong delivered = new AtomicLong();
    private static final AtomicLong wrong = new AtomicLong();
    private static volatile long lastNs;
    private static volatile long pacedFrom = Long.MAX_VALUE;
    private static volatile long[] dueNs = new long[0];
    private static final ConcurrentLinkedQueue<Long> latenciesNs = new ConcurrentLinkedQueue<>();

    private Artemis() {}

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("server")) {
            serve(arguments[1]);
        } else {
            load(Integer.parseInt(arguments[1]), Integer.parseInt(arguments[2]), arguments[3]);
        }
        System.exit(0);
    }

    private static void serve(String folder) throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        boolean aio = LibaioContext.isLoaded();
        ConfigurationImpl made = new ConfigurationImpl();
        made.setSecurityEnabled(false);
        made.setPersistenceEnabled(true);
        made.setJournalType(aio ? JournalType.ASYNCIO : JournalType.NIO);
        made.setJournalDatasync(true);
        made.setJournalDirectory(folder + "/journal");
        made.setBindingsDirectory(folder + "/bindings");
        made.setLargeMessagesDirectory(folder + "/large");
        made.setPagingDirectory(folder + "/paging");
        // How long a write waits for others to share its sync; `artemis create` would measure the disk to choose it.
        int waitsNs = Integer.getInteger("wait.ns", 500_000);
        made.setJournalBufferTimeout_AIO(waitsNs);
        made.setJournalBufferTimeout_NIO(waitsNs);
        made.addAcceptorConfiguration("tcp", "tcp://127.0.0.1:" + port);
        made.addAddressSetting("#", new AddressSettings().setMaxSizeBytes(-1));
        EmbeddedActiveMQ server = new EmbeddedActiveMQ();
        server.setConfiguration(made);
        server.start();
        say("{\"port\":%d,\"journal\":\"%s\"}", port, aio ? "libaio" : "NIO");
        while (System.in.read() >= 0) {}
        server.stop();
    }

    private static void load(int port, int consumers, String body) throws Exception {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory("tcp://127.0.0.1:" + port);
        factory.setBlockOnDurableSend(true);
        Connection consuming = factory.createConnection();
        consuming.setClientID("consumers");
        Session[] sessions = new Session[Math.min(consumers, CONSUMER_SESSIONS)];
        for (int index = 0; index < sessions.length; index++) {
            sessions[index] = consuming.createSession(false, Session.AUTO_ACKNOWLEDGE);
        }
        Topic topic = sessions[0].createTopic("events");
        for (int index = 0; index < consumers; index++) {
            String type = "com.shop.t" + index;
            sessions[index % sessions.length]
                    .createDurableConsumer(topic, "c" + index, "type = '" + type + "'", false)
                    .setMessageListener(message -> came(message, type));
        }
        consuming.start();
        say("{\"ready\":true}");
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] words = line.split(" ");
            if (words[0].equals("closed")) {
                closed(factory, consumers, body, Integer.parseInt(words[1]), Double.parseDouble(words[2]));
            } else {
                paced(factory, consumers, body, Double.parseDouble(words[1]), Double.parseDouble(words[2]));
            }
        }
    }

    private static void came(Message message, String type) {
        try {
            long now = System.nanoTime();
            if (!type.equals(message.getStringProperty("type")) || ((TextMessage) message).getText().isEmpty()) {
                wrong.incrementAndGet();
            }
            long id = Long.parseLong(message.getStringProperty("id"));
            if (id >= pacedFrom) {
                latenciesNs.add(now - dueNs[(int) (id - pacedFrom)]);
            }
            lastNs = now;
            delivered.incrementAndGet();
        } catch (JMSException error) {
            throw new IllegalStateException(error);
        }
    }

    private static void send(Session session, MessageProducer producer, int consumers, String body) throws JMSException {
        long id = number.getAndIncrement();
        TextMessage message = session.createTextMessage(body);
        message.setStringProperty("specversion", "1.0");
        message.setStringProperty("id", Long.toString(id));
        message.setStringProperty("source", "/ship/node-115");
        message.setStringProperty("type", "com.shop.t" + id % consumers);
        message.setStringProperty("subject", "s/61898");
        message.setStringProperty("time", "2026-11-21T00:00:00Z");
        message.setStringProperty("datacontenttype", "application/json");
        message.setStringProperty("partitionkey", "p48");
        producer.send(message);
    }

    private static MessageProducer producer(Session session) throws JMSException {
        MessageProducer made = session.createProducer(session.createTopic("events"));
        made.setDeliveryMode(DeliveryMode.PERSISTENT);
        return made;
    }

    private static void closed(
            ActiveMQConnectionFactory factory, int consumers, String body, int producers, double seconds)
            throws Exception {
        List<Connection> connections = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        List<long[]> took = new ArrayList<>();
        AtomicLong failed = new AtomicLong();
        long before = number.get();
        long runNs = (long) (seconds * 1e9);
        Session[] sessions = new Session[producers];
        MessageProducer[] made = new MessageProducer[producers];
        for (int index = 0; index < producers; index++) {
            Connection connection = factory.createConnection();
            connections.add(connection);
            sessions[index] = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            made[index] = producer(sessions[index]);
        }
        long startedNs = System.nanoTime();
        for (int index = 0; index < producers; index++) {
            Session session = sessions[index];
            MessageProducer one = made[index];
            Thread thread = new Thread(() -> {
                long[] times = new long[1024];
                int count = 0;
                try {
                    for (long now = System.nanoTime(); now - startedNs < runNs; ) {
                        send(session, one, consumers, body);
                        long after = System.nanoTime();
                        if (count == times.length) {
                            times = Arrays.copyOf(times, 2 * count);
                        }
                        times[count++] = after - now;
                        now = after;
                    }
                } catch (JMSException error) {
                    failed.incrementAndGet();
                }
                synchronized (took) {
                    took.add(Arrays.copyOf(times, count));
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        double ackedS = (System.nanoTime() - startedNs) / 1e9;
        drain();
        for (Connection connection : connections) {
            connection.close();
        }
        long[] all = took.stream().flatMapToLong(Arrays::stream).sorted().toArray();
        say(
                "{\"sent\":%d,\"acked_s\":%.6f,\"delivered_s\":%.6f,\"ack_p50_ms\":%.3f,\"ack_p99_ms\":%.3f,\"wrong\":%d}",
                number.get() - before,
                ackedS,
                (lastNs - startedNs) / 1e9,
                quantileMs(all, 0.5),
                quantileMs(all, 0.99),
                wrong.get() + failed.get());
    }

    private static void paced(
            ActiveMQConnectionFactory factory, int consumers, String body, double rate, double seconds)
            throws Exception {
        int count = (int) (rate * seconds);
        latenciesNs.clear();
        dueNs = new long[count];
        pacedFrom = number.get();
        try (Connection connection = factory.createConnection()) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer one = producer(session);
            long startedNs = System.nanoTime();
            for (int index = 0; index < count; index++) {
                dueNs[index] = startedNs + (long) (index * 1e9 / rate);
                long waitNs = dueNs[index] - System.nanoTime();
                if (waitNs > 0) {
                    Thread.sleep(waitNs / 1_000_000, (int) (waitNs % 1_000_000));
                }
                send(session, one, consumers, body);
            }
            drain();
        }
        pacedFrom = Long.MAX_VALUE;
        long[] all = latenciesNs.stream().mapToLong(Long::longValue).sorted().toArray();
        say(
                "{\"sent\":%d,\"deliver_p50_ms\":%.3f,\"deliver_p99_ms\":%.3f,\"wrong\":%d}",
                all.length, quantileMs(all, 0.5), quantileMs(all, 0.99), wrong.get());
    }

    private static void drain() throws InterruptedException {
        long deadline = System.nanoTime() + DRAIN_NS;
        while (delivered.get() < number.get()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(delivered.get() + " of " + number.get() + " messages were delivered");
            }
            Thread.sleep(1);
        }
    }

    private static double quantileMs(long[] sorted, double quantile) {
        return sorted[(int) (sorted.length * quantile)] / 1e6;
    }

    private static void say(String form, Object... values) {
        System.out.println(String.format(Locale.ROOT, form, values));
        System.out.flush();
    }
}
