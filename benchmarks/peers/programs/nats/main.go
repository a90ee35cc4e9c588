// NATS JetStream, or its clients, as a program of `benchmarks.peers`: what it is asked and says is in
// `benchmarks/peers/systems.py`.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const drainMax = 60 * time.Second

var (
	number, delivered, wrong atomic.Int64
	last                     atomic.Int64
	began                    = time.Now()
	paceLock                 sync.Mutex
	pacedFrom                = int64(1) << 62
	due                      []time.Duration
	latencies                []time.Duration
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func main() {
	if os.Args[1] == "server" {
		serve(os.Args[2])
		return
	}
	consumers, err := strconv.Atoi(os.Args[3])
	must(err)
	load("nats://127.0.0.1:"+os.Args[2], consumers, []byte(os.Args[4]))
}

func serve(folder string) {
	made, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: folder, SyncAlways: true, NoLog: true, NoSigs: true,
	})
	must(err)
	go made.Start()
	if !made.ReadyForConnections(10 * time.Second) {
		must(fmt.Errorf("the server did not start"))
	}
	fmt.Printf("{\"port\":%d,\"sync_interval\":\"always\"}\n", made.Addr().(*net.TCPAddr).Port)
	_, _ = io.Copy(io.Discard, os.Stdin)
	made.Shutdown()
}

func load(url string, consumers int, body []byte) {
	ctx := context.Background()
	consuming, err := nats.Connect(url)
	must(err)
	streams, err := jetstream.New(consuming)
	must(err)
	stream, err := streams.CreateStream(ctx, jetstream.StreamConfig{
		Name: "events", Subjects: []string{"ev.>"}, Storage: jetstream.FileStorage,
	})
	must(err)
	for index := range consumers {
		kind := fmt.Sprintf("com.shop.t%d", index)
		made, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: fmt.Sprintf("c%d", index), FilterSubject: "ev." + kind, AckPolicy: jetstream.AckExplicitPolicy,
		})
		must(err)
		_, err = made.Consume(func(message jetstream.Msg) { came(message, kind) })
		must(err)
	}
	fmt.Println(`{"ready":true}`)
	asked := bufio.NewScanner(os.Stdin)
	for asked.Scan() {
		words := strings.Fields(asked.Text())
		first, err := strconv.ParseFloat(words[1], 64)
		must(err)
		seconds, err := strconv.ParseFloat(words[2], 64)
		must(err)
		if words[0] == "closed" {
			closed(url, consumers, body, int(first), time.Duration(seconds*float64(time.Second)))
		} else {
			paced(url, consumers, body, first, seconds)
		}
	}
}

func came(message jetstream.Msg, kind string) {
	now := time.Since(began)
	if message.Headers().Get("ce-type") != kind || len(message.Data()) == 0 {
		wrong.Add(1)
	}
	id, err := strconv.ParseInt(message.Headers().Get("ce-id"), 10, 64)
	must(err)
	paceLock.Lock()
	if id >= pacedFrom {
		latencies = append(latencies, now-due[id-pacedFrom])
	}
	paceLock.Unlock()
	must(message.Ack())
	last.Store(int64(now))
	delivered.Add(1)
}

func message(id int64, consumers int, body []byte) *nats.Msg {
	kind := fmt.Sprintf("com.shop.t%d", id%int64(consumers))
	made := nats.NewMsg("ev." + kind)
	made.Header = nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {strconv.FormatInt(id, 10)}, "ce-source": {"/ship/node-115"},
		"ce-type": {kind}, "ce-subject": {"s/61898"}, "ce-time": {"2026-11-21T00:00:00Z"},
		"content-type": {"application/json"}, "ce-partitionkey": {"p48"},
	}
	made.Data = body
	return made
}

// producer is a connection of its own; each of its messages is acknowledged before the next.
func producer(url string) (*nats.Conn, jetstream.JetStream) {
	connection, err := nats.Connect(url)
	must(err)
	made, err := jetstream.New(connection)
	must(err)
	return connection, made
}

func closed(url string, consumers int, body []byte, producers int, run time.Duration) {
	ctx := context.Background()
	before := number.Load()
	var all sync.WaitGroup
	times := make([][]time.Duration, producers)
	connections := make([]*nats.Conn, producers)
	made := make([]jetstream.JetStream, producers)
	for index := range producers {
		connections[index], made[index] = producer(url)
	}
	started := time.Since(began)
	for index := range producers {
		all.Go(func() {
			for now := time.Since(began); now-started < run; {
				_, err := made[index].PublishMsg(ctx, message(number.Add(1)-1, consumers, body))
				must(err)
				after := time.Since(began)
				times[index] = append(times[index], after-now)
				now = after
			}
		})
	}
	all.Wait()
	acked := time.Since(began) - started
	drain()
	for _, one := range connections {
		one.Close()
	}
	var took []time.Duration
	for _, some := range times {
		took = append(took, some...)
	}
	fmt.Printf("{\"sent\":%d,\"acked_s\":%.6f,\"delivered_s\":%.6f,\"ack_p50_ms\":%.3f,\"ack_p99_ms\":%.3f,\"wrong\":%d}\n",
		number.Load()-before, acked.Seconds(), (time.Duration(last.Load()) - started).Seconds(),
		quantileMs(took, 0.5), quantileMs(took, 0.99), wrong.Load())
}

func paced(url string, consumers int, body []byte, rate, seconds float64) {
	ctx := context.Background()
	count := int(rate * seconds)
	paceLock.Lock()
	latencies, due, pacedFrom = nil, make([]time.Duration, count), number.Load()
	paceLock.Unlock()
	connection, made := producer(url)
	started := time.Since(began)
	for index := range count {
		at := started + time.Duration(float64(index)/rate*float64(time.Second))
		paceLock.Lock()
		due[index] = at
		paceLock.Unlock()
		time.Sleep(at - time.Since(began))
		_, err := made.PublishMsg(ctx, message(number.Add(1)-1, consumers, body))
		must(err)
	}
	drain()
	connection.Close()
	paceLock.Lock()
	defer paceLock.Unlock()
	pacedFrom = int64(1) << 62
	fmt.Printf("{\"sent\":%d,\"deliver_p50_ms\":%.3f,\"deliver_p99_ms\":%.3f,\"wrong\":%d}\n",
		len(latencies), quantileMs(latencies, 0.5), quantileMs(latencies, 0.99), wrong.Load())
}

func drain() {
	for deadline := time.Now().Add(drainMax); delivered.Load() < number.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			must(fmt.Errorf("%d of %d messages were delivered", delivered.Load(), number.Load()))
		}
	}
}

func quantileMs(all []time.Duration, quantile float64) float64 {
	sort.Slice(all, func(left, right int) bool { return all[left] < all[right] })
	return float64(all[int(float64(len(all))*quantile)]) / 1e6
}
