package inference_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// BenchmarkFiguresClients measures identity of 64 bytes with 1 to 1,000 clients, each with a connection: with a bare
// server, a function in the gateway's process, and a function of an owner. All run on this machine, so many clients
// measure the sum of both sides. Run it with -benchtime 1x.
func BenchmarkFiguresClients(b *testing.B) {
	const lasts = 2 * time.Second
	owner := remotetest.StartOwner(b)
	gw := serve(b, owner, "--access-log", "off")
	bareGRPC, bareHTTP, _ := startProcess(b, "bare")
	embeddedGRPC, embeddedHTTP, _ := startProcess(b, "embedded")
	for _, protocol := range []struct {
		name                  string
		connect               func(b *testing.B, address string) func() error
		bare, embedded, owner string
	}{
		{"grpc", connectGRPC, bareGRPC, embeddedGRPC, gw.Addresses.GRPC},
		{"rest", connectHTTP, bareHTTP, embeddedHTTP, gw.Addresses.HTTP},
	} {
		for _, clients := range remotetest.Curve {
			b.Run(fmt.Sprintf("%s/%d", protocol.name, clients), func(b *testing.B) {
				floor := 0.0
				for _, server := range [][2]string{{"bare", protocol.bare}, {"embedded", protocol.embedded}, {"owner", protocol.owner}} {
					load := remotetest.Run(b, clients, lasts, func() func() error { return protocol.connect(b, server[1]) })
					load.Report(b, server[0])
					if server[0] == "bare" {
						floor = load.Rate
					} else {
						b.ReportMetric(floor/load.Rate, "bare/"+server[0])
					}
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func connectGRPC(b *testing.B, address string) func() error {
	b.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	client, request := pb.NewGRPCInferenceServiceClient(conn), identity(16)
	return func() error {
		_, err := client.ModelInfer(context.Background(), request)
		return err
	}
}

func connectHTTP(b *testing.B, address string) func() error {
	b.Helper()
	body, err := json.Marshal(restMessage{Inputs: []restTensor{{"x", "FP32", []int64{16}, make([]float32, 16)}}})
	require.NoError(b, err)
	client := &http.Client{Transport: &http.Transport{}}
	b.Cleanup(client.CloseIdleConnections)
	return func() error {
		answer, err := client.Post("http://"+address+"/v2/models/identity/infer", "application/json", bytes.NewReader(body))
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && !strings.Contains(string(text), `"outputs"`) {
			err = fmt.Errorf("%s: %s", answer.Status, text)
		}
		return err
	}
}
