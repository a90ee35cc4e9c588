// Command publish sends an order to a broker of Headgate.
//
//	go run ./publish http://127.0.0.1:8080/default/default [binary]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

func main() {
	order := cloudevents.NewEvent()
	order.SetID("go-1") // stays the same when the order is sent again, so that subscribers know it
	order.SetSource("/shop/go")
	order.SetType("order.paid")
	order.SetSubject("Grün & Co")
	if err := order.SetData(cloudevents.ApplicationJSON, map[string]int{"total": 250}); err != nil {
		log.Fatal(err)
	}

	client, err := cloudevents.NewClientHTTP()
	if err != nil {
		log.Fatal(err)
	}
	ctx := cloudevents.ContextWithTarget(context.Background(), os.Args[1])
	ctx = cloudevents.ContextWithRetriesExponentialBackoff(ctx, 200*time.Millisecond, 5)
	if len(os.Args) > 2 && os.Args[2] == "binary" {
		ctx = cloudevents.WithEncodingBinary(ctx)
	} else {
		ctx = cloudevents.WithEncodingStructured(ctx)
	}

	// An acknowledgement is any 2xx; Headgate's 202 means that the event is on disk.
	if result := client.Send(ctx, order); !cloudevents.IsACK(result) {
		log.Fatalf("not published: %v", result)
	}
	fmt.Println("published", order.ID())
}
