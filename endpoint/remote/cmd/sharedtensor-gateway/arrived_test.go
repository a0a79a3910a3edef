package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/compute/computepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// safetensorsHead returns the header of a file of one tensor.
func safetensorsHead(size int) []byte {
	text := fmt.Sprintf(`{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, size, size)
	for len(text)%8 != 0 {
		text += " "
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
}

// hold sends the beginning of a request and keeps the request open until the test ends.
func hold(t *testing.T, method, url string, length int64, header map[string]string, begin []byte) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	reader, writer := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, method, url, reader)
	require.NoError(t, err)
	request.ContentLength = length
	for name, value := range header {
		request.Header.Set(name, value)
	}
	go func() {
		if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	}()
	_, err = writer.Write(begin)
	require.NoError(t, err)
}

// Uploads are charged by received bytes: clients that announce a large upload and send little do not block others.
func TestUploadsAreChargedAsTheyArrive(t *testing.T) {
	owner := remotetest.StartOwner(t)
	const size = 8 << 20
	gw := remotetest.StartGateway(t, owner.Socket, "--max-model", "9MiB", "--infer-max-pending", "16MiB", "--compute-max-stream", "8MiB")
	requireReady(t, gw)

	t.Run("model", func(t *testing.T) {
		head := safetensorsHead(size)
		url := gw.HTTP() + "/v1/models/%s/model.safetensors"
		for range 4 {
			hold(t, http.MethodPut, fmt.Sprintf(url, "held"), int64(len(head)+size), nil, head)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf(url, "m"), bytes.NewReader(append(head, make([]byte, size)...)))
		require.NoError(t, err)
		requireAnswer(t, request, http.StatusCreated)
	})
	t.Run("inference", func(t *testing.T) {
		head := func(n int) string {
			return fmt.Sprintf(`{"inputs":[{"name":"x","datatype":"UINT8","shape":[%d],"parameters":{"binary_data_size":%d}}]}`, n, n)
		}
		url := gw.HTTP() + "/v2/models/identity/infer"
		for range 4 {
			begin := head(15 << 20)
			hold(t, http.MethodPost, url, -1, map[string]string{"Inference-Header-Content-Length": fmt.Sprint(len(begin))}, []byte(begin))
		}
		text := head(size)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, io.MultiReader(bytes.NewReader([]byte(text)), bytes.NewReader(make([]byte, size))))
		require.NoError(t, err)
		request.Header.Set("Inference-Header-Content-Length", fmt.Sprint(len(text)))
		requireAnswer(t, request, http.StatusOK)
	})
	t.Run("compute", func(t *testing.T) {
		conn, err := grpc.NewClient(gw.Addresses.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		client := computepb.NewComputeServiceClient(conn)
		claim := &computepb.ComputeRequest{ModelId: "identity", WideShape: []int64{size}, Metadata: map[string]string{"dtype": "uint8", "accept-dtype": "any"}, Data: []byte{0}}
		for range 8 { // the budget is four times the largest model
			call, err := client.ComputeStream(t.Context())
			require.NoError(t, err)
			require.NoError(t, call.Send(claim))
		}
		remotetest.Eventually(t, func() error {
			statistics, err := client.GetStatistics(t.Context(), &computepb.StatisticsRequest{})
			if err == nil && statistics.GetInFlight() < 8 {
				err = fmt.Errorf("%d requests have begun, %d failed", statistics.GetInFlight(), statistics.GetFailures())
			}
			return err
		})
		call, err := client.ComputeStream(t.Context())
		require.NoError(t, err)
		claim.Data = make([]byte, 1<<20)
		require.NoError(t, call.Send(claim))
		for range 7 {
			require.NoError(t, call.Send(&computepb.ComputeRequest{Data: make([]byte, 1<<20)}))
		}
		require.NoError(t, call.CloseSend())
		received := 0
		for received < size {
			answer, err := call.Recv()
			require.NoError(t, err)
			received += len(answer.GetData())
		}
	})
}

func requireAnswer(t *testing.T, request *http.Request, want int) {
	t.Helper()
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	if len(text) > 1000 {
		text = text[:1000]
	}
	require.Equal(t, want, response.StatusCode, "%s", text)
}

// A body that is sent too slowly ends its request and releases its memory.
func TestSlowBodiesEnd(t *testing.T) {
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s", "--min-rate", "64KiB")...)
	reader, writer := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+"/jsonrpc", reader)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+fullToken)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	}()
	text, err := json.Marshal(make([]int, 1<<10))
	require.NoError(t, err)
	go trickle(writer, text, ended)
	select {
	case <-ended:
	case <-time.After(remotetest.Patience):
		t.Fatal("the request did not end")
	}
	requireNoBytesInFlight(t, gw)
}
