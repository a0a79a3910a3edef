package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Tokens of the gateways in these tests.
const (
	fullToken     = "0123456789abcdef-full"
	readOnlyToken = "0123456789abcdef-look"
)

// withTokens returns the flags of a gateway that accepts the tokens.
func withTokens(t *testing.T, args ...string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(path, []byte(fullToken+" full\n"+readOnlyToken+" look read-only\n"), 0o600))
	return append([]string{"--token-file", path}, args...)
}

// rawCall is a gRPC call whose message is written in raw bytes.
type rawCall struct {
	body   *io.PipeWriter
	status chan callStatus
	cancel context.CancelFunc
}

// callStatus is the status of a finished call, and why it has none.
type callStatus struct {
	code codes.Code
	err  error
}

// rawClient returns an HTTP client with a separate connection for HTTP/2 without TLS.
func rawClient(t *testing.T) *http.Client { return rawClientFrom(t, nil) }

// rawClientFrom returns a client like rawClient with a local address. Nil means any.
func rawClientFrom(t *testing.T, from net.Addr) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: (&net.Dialer{LocalAddr: from}).DialContext}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// startCall sends the headers of a call.
func startCall(t *testing.T, client *http.Client, gw *remotetest.Gateway, method, token string) *rawCall {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	reader, writer := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+gw.Addresses.GRPC+method, reader)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	call := &rawCall{body: writer, status: make(chan callStatus, 1), cancel: cancel}
	go func() { call.status <- statusOf(client.Do(request)) }()
	return call
}

// statusOf returns the status of a finished call. It returns Unknown if the call has none.
func statusOf(response *http.Response, err error) callStatus {
	if err != nil {
		return callStatus{codes.Unknown, err}
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	text := response.Header.Get("Grpc-Status")
	if text == "" {
		text = response.Trailer.Get("Grpc-Status")
	}
	var number uint32
	if _, bad := fmt.Sscan(text, &number); bad != nil {
		return callStatus{codes.Unknown, errors.Join(fmt.Errorf("the status is %q after HTTP status %d", text, response.StatusCode), err)}
	}
	return callStatus{codes.Code(number), nil}
}

// claim writes the header of a message of size bytes.
func (c *rawCall) claim(size int) {
	header := make([]byte, 5)
	binary.BigEndian.PutUint32(header[1:], uint32(size))
	_, _ = c.body.Write(header) // best effort: the call's status reports failures
}

// requireStatus waits for the end of the call and requires its status.
func (c *rawCall) requireStatus(t *testing.T, want codes.Code) {
	t.Helper()
	select {
	case got := <-c.status:
		require.Equal(t, want, got.code, "status of the call: %v", got.err)
	case <-time.After(remotetest.Patience):
		t.Fatal("the call did not end")
	}
}

const (
	inferMethod  = "/inference.GRPCInferenceService/ModelInfer"
	checkMethod  = "/grpc.health.v1.Health/Check"
	watchMethod  = "/grpc.health.v1.Health/Watch"
	streamInfer  = "/inference.GRPCInferenceService/ModelStreamInfer"
	putMethod    = "/sharedtensor.stream.v1.TensorStream/Put"
	computeInOne = "/splitlearn.comm.ComputeService/Compute"
)

// A client without a token is refused when its headers are received. A health check cannot send more than a health
// check needs.
func TestCallsAreRefusedBeforeTheirMessage(t *testing.T) {
	gw := remotetest.StartGateway(t, "off", withTokens(t)...)
	client := rawClient(t)
	for _, method := range []string{inferMethod, computeInOne, streamInfer, putMethod, watchMethod} {
		startCall(t, client, gw, method, "").requireStatus(t, codes.Unauthenticated)
		startCall(t, client, gw, method, fullToken+"x").requireStatus(t, codes.Unauthenticated)
	}
	startCall(t, client, gw, "/no.such/Method", fullToken).requireStatus(t, codes.Unimplemented)
	call := startCall(t, client, gw, checkMethod, "")
	call.claim(1 << 20)
	call.requireStatus(t, codes.ResourceExhausted)
	call = startCall(t, client, gw, checkMethod, "")
	call.claim(0)
	require.NoError(t, call.body.Close())
	call.requireStatus(t, codes.OK)

	call = startCall(t, client, gw, inferMethod, readOnlyToken)
	call.claim(60 << 20)
	call.requireStatus(t, codes.ResourceExhausted)
}

// A call ends if its message is missing, unfinished or too slow.
func TestUnfinishedMessageEndsItsCall(t *testing.T) {
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--stall", "1s", "--min-rate", "1KiB")...)
	client := rawClient(t)
	nothing := startCall(t, client, gw, inferMethod, fullToken)
	stopped := startCall(t, client, gw, streamInfer, fullToken)
	stopped.claim(1 << 20)
	_, _ = stopped.body.Write(make([]byte, 300<<10))
	trickling := startCall(t, client, gw, inferMethod, fullToken)
	trickling.claim(1 << 20)
	go trickle(trickling.body, []byte{0}, t.Context().Done())
	for _, call := range []*rawCall{nothing, stopped, trickling} {
		call.requireStatus(t, codes.DeadlineExceeded)
	}
	requireNoBytesInFlight(t, gw)
}

// requireNoBytesInFlight waits until the gateway holds no message.
func requireNoBytesInFlight(t *testing.T, gw *remotetest.Gateway) {
	t.Helper()
	remotetest.Eventually(t, func() error {
		for _, name := range []string{"sharedtensor_gateway_request_bytes", "sharedtensor_gateway_calls"} {
			value := metric(t, gw, name)
			if value != "0" && (name != "sharedtensor_gateway_calls" || value != "1") { // the metrics request is itself a call
				return fmt.Errorf("%s is %s", name, value)
			}
		}
		return nil
	})
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, gw *remotetest.Gateway, name string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, gw.HTTP()+"/metrics", http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+fullToken)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("there is no metric %s", name)
	return ""
}

// trickle writes p byte by byte until the reader or the request ends.
func trickle(w *io.PipeWriter, p []byte, ended <-chan struct{}) {
	for i := 0; ; i = (i + 1) % len(p) {
		if _, err := w.Write(p[i : i+1]); err != nil {
			return
		}
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
