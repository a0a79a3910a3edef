package inference_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/sharedtensor/sharedtensor/endpoint/remote/inference/inferencepb"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// unreadCall sends a call of HTTP/2 frames, whose client permits no byte of the answer.
func unreadCall(t *testing.T, address, method string, r *pb.ModelInferRequest) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	frame := func(kind, flags byte, id uint32, payload string) string {
		b := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
		return string(binary.BigEndian.AppendUint32(append(b, flags), id)) + payload
	}
	fields := ""
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		fields += "\x00" + string(rune(len(f[0]))) + f[0] + string(rune(len(f[1]))) + f[1] // literals without an index (RFC 7541)
	}
	message, err := proto.Marshal(r)
	require.NoError(t, err)
	body := "\x00" + string(binary.BigEndian.AppendUint32(nil, uint32(len(message)))) + string(message)
	require.Less(t, len(body), 1<<16-1, "the window of a new connection")
	sent := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, "\x00\x04\x00\x00\x00\x00") + frame(1, 4, 1, fields) // a window of 0
	for ; len(body) > 1<<14; body = body[1<<14:] {
		sent += frame(0, 0, 1, body[:1<<14])
	}
	_, err = io.WriteString(conn, sent+frame(0, 1, 1, body))
	require.NoError(t, err)
	return conn
}

// requireReset reads frames until stream 1 is reset or the connection ends.
func requireReset(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(15*time.Second)))
	for {
		var header [9]byte
		if _, err := io.ReadFull(conn, header[:]); err != nil {
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the call continues")
			return
		}
		if header[3] == 3 {
			return
		}
		_, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint32(header[:])>>8))
		require.NoError(t, err)
	}
}

// The answer of a call that its client does not read ends after the stall time, and that of a client that leaves at once, with
// its slot and its memory. The gateway runs without a garbage collector, which would release the memory too.
func TestUnreadAnswersAreReleased(t *testing.T) {
	t.Setenv("GOGC", "off")
	owner := remotetest.StartOwner(t)
	gw := serve(t, owner, "--stall", "5s")
	client := dial(t, gw)
	elements := identity(15_000)
	for range 3 {
		_, err := client.ModelInfer(t.Context(), elements)
		require.NoError(t, err)
	}
	mapped := func() int {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", gw.PID()))
		require.NoError(t, err)
		return strings.Count(string(text), "memfd:")
	}
	calls := func() string {
		_, text := gw.Get(t, "/metrics")
		for line := range strings.Lines(string(text)) {
			if value, found := strings.CutPrefix(line, "sharedtensor_gateway_calls "); found {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	before := mapped()
	repeated := proto.CloneOf(elements)
	repeated.ModelName, repeated.Parameters = "repeat", map[string]*pb.InferParameter{"times": integer(1000)}
	var stay, leave []net.Conn
	for method, requests := range map[string][]*pb.ModelInferRequest{"ModelInfer": {elements}, "ModelStreamInfer": {elements, repeated}} {
		for _, r := range requests {
			for range 4 {
				stay = append(stay, unreadCall(t, gw.Addresses.GRPC, "/inference.GRPCInferenceService/"+method, r))
				leave = append(leave, unreadCall(t, gw.Addresses.GRPC, "/inference.GRPCInferenceService/"+method, r))
			}
		}
	}
	remotetest.Eventually(t, func() error {
		if n, running := mapped(), calls(); n < before+24 || running != "25" { // with the request for metrics
			return fmt.Errorf("%d memory files are mapped, %d before the calls; %s calls", n, before, running)
		}
		return nil
	})
	for _, conn := range leave {
		require.NoError(t, conn.Close())
	}
	for _, conn := range stay {
		requireReset(t, conn)
	}
	remotetest.Eventually(t, func() error { // unused memory is kept for a while
		if n, running := mapped(), calls(); n > before || running != "1" {
			return fmt.Errorf("%d memory files are mapped, %d before the calls; %s calls", n, before, running)
		}
		return nil
	})
	_, err := client.ModelInfer(t.Context(), elements)
	require.NoError(t, err, "other connections continue")
}
