package jsonrpc_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The benchmarks of the README's figures compare the gateway with a floor, the minimum that the same transfer needs.
// Both run alternately, each side in a separate process. An iteration is one round:
//
//	go test -run '^$' -bench Figures -benchtime 15x ./jsonrpc
//
// "ratio" is the median over the rounds: gateway to floor in bytes per second for transfers, and in time per call for
// calls.

// figuresClient returns an HTTP client that uses one connection with 64 KiB buffers.
func figuresClient() *http.Client {
	return &http.Client{Transport: &http.Transport{ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, MaxIdleConnsPerHost: 4}}
}

// callsEach is the number of calls in a round.
const callsEach = 500

func microseconds(d time.Duration) float64 { return float64(d.Microseconds()) / callsEach }

// repeat posts a body callsEach times on one connection.
func repeat(client *http.Client, url, body, want string) error {
	for range callsEach {
		resp, err := client.Post(url, "application/json", bytes.NewBufferString(body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		var answer struct{ Result json.RawMessage }
		if err := json.Unmarshal(text, &answer); err != nil || string(answer.Result) != want {
			return fmt.Errorf("%s: %w", text, err)
		}
	}
	return nil
}

// BenchmarkFiguresProtocol measures JSON-RPC without the owner: the gateway answers the method itself.
func BenchmarkFiguresProtocol(b *testing.B) {
	gw := remotetest.StartGateway(b, "off")
	floor := remotetest.StartFloor(b)
	client := figuresClient()
	remotetest.Rounds(b, "µs", microseconds, func() error {
		return repeat(client, gw.HTTP()+"/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"release_result","params":{"id":"x"}}`, `{"released":false}`)
	}, func() error {
		return repeat(client, "http://"+floor.HTTP+"/add", `{"jsonrpc":"2.0","id":1,"params":{"a":1,"b":2}}`, "3")
	})
}

// BenchmarkFiguresCall measures a call of an owner's function over JSON-RPC. The floor runs the function in its own
// process, so the ratio includes the hop to the owner.
func BenchmarkFiguresCall(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket)
	gw.Attached(b)
	floor := remotetest.StartFloor(b)
	client := figuresClient()
	remotetest.Rounds(b, "µs", microseconds, func() error {
		return repeat(client, gw.HTTP()+"/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"add","kwargs":{"a":1,"b":2}}}`, "3")
	}, func() error {
		return repeat(client, "http://"+floor.HTTP+"/add", `{"jsonrpc":"2.0","id":1,"params":{"a":1,"b":2}}`, "3")
	})
}

// BenchmarkFiguresClients measures calls of an owner's function with 1 to 1,000 clients, each with a connection. Run it
// with -benchtime 1x.
func BenchmarkFiguresClients(b *testing.B) {
	const lasts = 2 * time.Second
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket, "--access-log", "off")
	gw.Attached(b)
	floor := remotetest.StartFloor(b)
	connect := func(b *testing.B, url, body string) func() error {
		client := &http.Client{Transport: &http.Transport{}}
		b.Cleanup(client.CloseIdleConnections)
		return func() error {
			answer, err := client.Post(url, "application/json", strings.NewReader(body))
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err == nil && !bytes.Contains(text, []byte(`"result":3`)) {
				err = fmt.Errorf("%s: %s", answer.Status, text)
			}
			return err
		}
	}
	for _, clients := range remotetest.Curve {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			bare := remotetest.Run(b, clients, lasts, func() func() error {
				return connect(b, "http://"+floor.HTTP+"/add", `{"jsonrpc":"2.0","id":1,"params":{"a":1,"b":2}}`)
			})
			bare.Report(b, "bare")
			load := remotetest.Run(b, clients, lasts, func() func() error {
				return connect(b, gw.HTTP()+"/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"add","kwargs":{"a":1,"b":2}}}`)
			})
			load.Report(b, "owner")
			b.ReportMetric(bare.Rate/load.Rate, "bare/owner")
			b.ReportMetric(0, "ns/op")
		})
	}
}
