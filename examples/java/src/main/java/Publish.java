import io.cloudevents.core.builder.CloudEventBuilder;
import io.cloudevents.http.HttpMessageFactory;
import io.cloudevents.jackson.JsonFormat;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;

/** Publishes an order: {@code Publish http://127.0.0.1:8080/default/default [binary]}. */
public final class Publish {
    private static final int ATTEMPTS_MAX = 5;

    public static void main(String[] arguments) throws Exception {
        var order = CloudEventBuilder.v1()
            .withId("java-1") // stays the same when the order is sent again, so that subscribers know it
            .withSource(URI.create("/shop/java"))
            .withType("order.paid")
            .withSubject("Grün & Co")
            .withData("application/json", "{\"total\": 250}".getBytes(StandardCharsets.UTF_8))
            .build();

        var request = HttpRequest.newBuilder(URI.create(arguments[0])).timeout(Duration.ofSeconds(30));
        var writer = HttpMessageFactory.createWriter(
            request::setHeader, body -> request.POST(BodyPublishers.ofByteArray(body)));
        if (arguments.length > 1 && arguments[1].equals("binary")) {
            writer.writeBinary(order);
        } else {
            writer.writeStructured(order, JsonFormat.CONTENT_TYPE);
        }

        HttpResponse<String> answer = send(request.build());
        if (answer.statusCode() / 100 != 2) {
            throw new IllegalStateException("not published: " + answer.statusCode() + " " + answer.body());
        }
        System.out.println("published " + order.getId());
    }

    /** Sends again after 429 and 503; Retry-After says when. */
    private static HttpResponse<String> send(HttpRequest request) throws Exception {
        // Without this the first request offers HTTP/2, and some servers then lose its body.
        var client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        for (int attempt = 1; ; attempt++) {
            var answer = client.send(request, BodyHandlers.ofString());
            boolean isBusy = answer.statusCode() == 429 || answer.statusCode() == 503;
            if (!isBusy || attempt == ATTEMPTS_MAX) {
                return answer;
            }
            Thread.sleep(1000 * answer.headers().firstValueAsLong("retry-after").orElse(attempt));
        }
    }
}
