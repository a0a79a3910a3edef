package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// debugPage returns a page of the debug listener.
func debugPage(t *testing.T, debug, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+debug+path, http.NoBody)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+fullToken)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", text)
	return string(text)
}

var goroutineFigure = regexp.MustCompile(`goroutine profile: total (\d+)`)

func goroutines(t *testing.T, debug string) int {
	t.Helper()
	n, err := strconv.Atoi(goroutineFigure.FindStringSubmatch(debugPage(t, debug, "/debug/pprof/goroutine?debug=1"))[1])
	require.NoError(t, err)
	return n
}

// frames attacks the gRPC port with frames of HTTP/2 that no client library sends, by clients that read nothing.
func (a *attackers) frames(t *testing.T) {
	t.Helper()
	block := "\x83\x86\x44\x01/\x41\x01a" // a POST to /
	for _, flood := range []string{
		h2Frame(4, 0, 0, ""),                                 // SETTINGS
		h2Frame(6, 0, 0, "12345678"),                         // PING
		h2Frame(2, 0, 1, "\x00\x00\x00\x00\x10"),             // PRIORITY
		h2Frame(8, 0, 0, "\x00\x00\x00\x01"),                 // WINDOW_UPDATE
		h2Frame(0x77, 0, 0, strings.Repeat("x", 16)),         // unknown
		h2Frame(0, 0, 1, "x"),                                // DATA of a byte
		h2Frame(0, 8, 1, "\xff"+strings.Repeat("\x00", 255)), // DATA that is padding
		h2Frame(9, 0, 1, ""),                                 // CONTINUATION
		h2Frame(1, 4, 1, block),                              // HEADERS
	} {
		piece := strings.Repeat(flood, attackPiece/len(flood))
		a.raw(t, a.gw.Addresses.GRPC, h2Settings+h2Frame(1, 4, 1, block)+piece)
		a.raw(t, a.gw.Addresses.GRPC, h2Settings+h2Frame(1, 0, 1, block)+piece)
	}
	var resets strings.Builder
	for id := uint32(1); id < 20_000; id += 2 {
		resets.WriteString(h2Frame(1, 4, id, block) + h2Frame(3, 0, id, "\x00\x00\x00\x08"))
	}
	a.raw(t, a.gw.Addresses.GRPC, h2Settings+resets.String())
}

// The attacks of clients without an identity or with a read-only one do not keep probes from being answered. After the stall
// time, the gateway has no goroutine, descriptor or memory of them, although no attacker closes a connection with a request.
func TestAttacksLeaveNothing(t *testing.T) {
	debug := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--debug", debug, "--stall", "3s")...)
	heapBefore, routinesBefore, filesBefore := held(t, gw, debug), goroutines(t, debug), remotetest.OpenFiles(t, gw.PID())

	a := &attackers{gw: gw}
	server, err := url.Parse(gw.Addresses.NATS)
	require.NoError(t, err)
	attacked := make(chan struct{})
	var probing sync.WaitGroup
	var quick, slow, refused int
	probing.Go(func() {
		client := &http.Client{Timeout: remotetest.Patience, Transport: &http.Transport{
			DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext, // not that of the attackers
		}}
		for {
			begin := time.Now()
			response, err := client.Get(gw.HTTP() + "/healthz")
			switch {
			case err != nil || response.StatusCode != http.StatusOK || response.Body.Close() != nil:
				refused++
			case time.Since(begin) > time.Second:
				slow++
			default:
				quick++
			}
			select {
			case <-attacked:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	a.frames(t)
	for _, token := range []string{"", readOnlyToken} {
		a.grpc(t, token)
		a.http(t, token)
		a.raw(t, server.Host, `CONNECT {"auth_token":"`+token+`"}`+"\r\nPUB a 1000000\r\n")
	}
	a.raw(t, gw.Addresses.HTTP, "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	a.raw(t, debug, "GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ")
	a.settle()
	during := held(t, gw, debug)
	close(attacked)
	probing.Wait()
	t.Logf("%d MiB sent, %d MiB held before, %d MiB then; %d probes quick, %d slow, %d refused", a.sent.Load()>>20, heapBefore>>20, during>>20, quick, slow, refused)
	require.Less(t, during-heapBefore, int64(64<<20*memoryFactor))
	require.Zero(t, refused, "probes")
	require.Positive(t, quick, "probes that are answered within a second on this machine, which also runs the attackers")

	remotetest.Eventually(t, func() error {
		a.closeIdle() // connections without a request may be idle for longer
		heap, routines, files := held(t, gw, debug), goroutines(t, debug), remotetest.OpenFiles(t, gw.PID())
		if heap > heapBefore+8<<20 || routines > routinesBefore+8 || files > filesBefore+8 {
			time.Sleep(200 * time.Millisecond)
			return fmt.Errorf("%d KiB held, %d before; %d goroutines, %d before; %d descriptors, %d before", heap>>10, heapBefore>>10, routines, routinesBefore, files, filesBefore)
		}
		return nil
	})
}

// Messages that take many times the memory of their encoding stay within twice --max-in-flight.
func TestExpensiveMessagesStayInBudget(t *testing.T) {
	const inFlight, size, clients = 96 << 20, 8 << 20, 12
	debug := remotetest.FreeAddress(t)
	gw := remotetest.StartGateway(t, "off", withTokens(t, "--debug", debug, "--max-in-flight", "96MiB", "--max-request", "16MiB")...)
	before := held(t, gw, debug)
	fill := func(head, piece, end string) []byte {
		return []byte(head + strings.Repeat(piece, size/len(piece)) + "0" + end)
	}
	var sending sync.WaitGroup
	client := rawClient(t)
	for range clients {
		for _, message := range []string{"\x2a\x00", "\x32\x00", "\x3a\x00", "\x22\x00"} { // inputs, outputs, parts, parameters
			call := startCall(t, client, gw, inferMethod, fullToken)
			sending.Go(func() {
				call.claim(size)
				_, _ = call.body.Write(bytes.Repeat([]byte(message), size/len(message))) // fails if it is refused
				_ = call.body.Close()
				<-call.status
			})
		}
		for path, body := range map[string][]byte{
			"/v2/models/none/infer":  fill(`{"inputs":[`, `{},`, `]}`),
			"/v2/models/other/infer": fill(`{"inputs":[{"name":"a","datatype":"INT64","shape":[1],"data":[`, `0,`, `]}]}`),
			"/jsonrpc":               fill(`{"jsonrpc":"2.0","id":1,"method":"call","params":{"name":"none","args":[`, `0,`, `]}}`),
			"/jsonrpc?":              fill(`{"jsonrpc":"2.0","id":1,"method":"call","params":{"name":"none","args":[`, `{},`, `]}}`),
		} {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gw.HTTP()+path, bytes.NewReader(body))
			require.NoError(t, err)
			request.Header.Set("Authorization", "Bearer "+fullToken)
			request.Header.Set("Content-Type", "application/json")
			sending.Go(func() {
				if response, err := http.DefaultClient.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					_ = response.Body.Close()
				}
			})
		}
	}
	sent := make(chan struct{})
	go func() {
		sending.Wait()
		close(sent)
	}()
	requireHeldUntil(t, gw, debug, sent, before, 2*inFlight*memoryFactor)
	requireNoBytesInFlight(t, gw)
}

// requireHeldUntil fails if a gateway holds more than before+limit bytes until end is closed.
func requireHeldUntil(t *testing.T, gw *remotetest.Gateway, debug string, end <-chan struct{}, before, limit int64) {
	t.Helper()
	most := int64(0)
	for done := false; !done; {
		select {
		case <-end:
			done = true
		default:
		}
		most = max(most, held(t, gw, debug)-before)
	}
	t.Logf("at most %d MiB in flight are held, resident at most %d MiB", most>>20, remotetest.ProcStatus(t, gw.PID(), "VmHWM")>>10)
	require.LessOrEqual(t, most, limit)
}
