import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import io.cloudevents.CloudEvent;
import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.core.provider.EventFormatProvider;
import io.cloudevents.http.HttpMessageFactory;
import io.cloudevents.jackson.JsonFormat;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Executors;

/** Answers each order with an invoice, which becomes an event of the broker: {@code Subscribe --port 9000}. */
public final class Subscribe {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws IOException {
        int port = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 9000;
        var server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 128);
        server.createContext("/", Subscribe::receive);
        server.setExecutor(Executors.newFixedThreadPool(32)); // a trigger's deliveries at the same time
        server.start();
    }

    private static void receive(HttpExchange exchange) throws IOException {
        byte[] body = exchange.getRequestBody().readAllBytes();
        CloudEvent invoice;
        try {
            invoice = invoiceOf(HttpMessageFactory.createReaderFromMultimap(exchange.getRequestHeaders(), body).toEvent());
        } catch (RuntimeException | IOException error) {
            answer(exchange, 400, ("no order: " + error).getBytes(StandardCharsets.UTF_8)); // not tried again: a dead letter
            return;
        }
        exchange.getResponseHeaders().set("content-type", JsonFormat.CONTENT_TYPE);
        answer(exchange, 200, EventFormatProvider.getInstance().resolveFormat(JsonFormat.CONTENT_TYPE).serialize(invoice));
    }

    private static CloudEvent invoiceOf(CloudEvent order) throws IOException {
        JsonNode total = JSON.readTree(order.getData().toBytes()).required("total");
        System.out.println(order.getId() + " of " + order.getSubject() + ": " + total);
        return CloudEventBuilder.v1()
            .withId("invoice-" + order.getId()) // the same when the order comes again
            .withSource(URI.create("/invoices/java"))
            .withType("invoice.made")
            .withSubject(order.getSubject())
            .withData("application/json", JSON.writeValueAsBytes(JSON.createObjectNode().set("amount", total)))
            .build();
    }

    private static void answer(HttpExchange exchange, int status, byte[] body) throws IOException {
        exchange.sendResponseHeaders(status, body.length == 0 ? -1 : body.length);
        try (var out = exchange.getResponseBody()) {
            out.write(body);
        }
    }
}
