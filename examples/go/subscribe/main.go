// Command subscribe answers each order with an invoice, which becomes an event of the broker.
//
//	go run ./subscribe --port 9000
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

func invoice(order cloudevents.Event) (*cloudevents.Event, cloudevents.Result) {
	var data struct{ Total *int }
	if err := order.DataAs(&data); err != nil || data.Total == nil {
		// Not tried again: a dead letter.
		return nil, cloudevents.NewHTTPResult(http.StatusBadRequest, "no order: %v", err)
	}
	fmt.Printf("%s of %s: %d\n", order.ID(), order.Subject(), *data.Total)

	made := cloudevents.NewEvent()
	made.SetID("invoice-" + order.ID()) // the same when the order comes again
	made.SetSource("/invoices/go")
	made.SetType("invoice.made")
	made.SetSubject(order.Subject())
	if err := made.SetData(cloudevents.ApplicationJSON, map[string]int{"amount": *data.Total}); err != nil {
		return nil, cloudevents.NewHTTPResult(http.StatusInternalServerError, "%v", err) // tried again
	}
	return &made, cloudevents.ResultACK
}

func main() {
	port := flag.Int("port", 9000, "port of loopback")
	flag.Parse()
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		log.Fatal(err)
	}
	client, err := cloudevents.NewClientHTTP(cloudevents.WithListener(listener))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	// Replies in structured mode: in binary mode the SDK writes text beyond ASCII into headers as it is.
	if err := client.StartReceiver(cloudevents.WithEncodingStructured(ctx), invoice); err != nil {
		log.Fatal(err)
	}
}
