package jsonrpc_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// The figures of README: what the gateway does beside the least that could be done, in turns and in the same run, each
// side a process of its own. One round is one iteration:
//
//	go test -run '^$' -bench Figures -benchtime 15x ./jsonrpc
//
// "ratio" is the median of the ratios of the rounds: of bytes a second, the gateway's to the floor's; of calls, the
// time of one through the gateway to the time of one at the floor.

// modelBytes is the size of the model that is moved.
const modelBytes = 256 << 20

// figuresClient is an HTTP client with room for 64 KiB in its buffers, on one connection.
func figuresClient() *http.Client {
	return &http.Client{Transport: &http.Transport{ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, MaxIdleConnsPerHost: 4}}
}

// rounds measures two things in turns and reports the medians and their ratio.
func rounds(b *testing.B, unit string, value func(time.Duration) float64, ours, floor func() error) {
	b.Helper()
	require.NoError(b, ours()) // the first one of each pays for what is made once
	require.NoError(b, floor())
	timed := func(f func() error) float64 {
		begin := time.Now()
		require.NoError(b, f())
		return value(time.Since(begin))
	}
	var mine, least, ratios []float64
	b.ResetTimer()
	for range b.N {
		least = append(least, timed(floor))
		mine = append(mine, timed(ours))
		ratios = append(ratios, mine[len(mine)-1]/least[len(least)-1])
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(mine), unit)
	b.ReportMetric(median(least), "floor-"+unit)
	b.ReportMetric(median(ratios), "ratio")
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func gigabytes(n int) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return float64(n) / 1e9 / d.Seconds() }
}

func BenchmarkFiguresDown(b *testing.B) {
	owner := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", modelBytes))
	gw := remotetest.StartGateway(b, owner.Socket)
	attached(b, gw)
	down(b, gw)
}

// BenchmarkFiguresDownUploaded is BenchmarkFiguresDown of a model whose memory the gateway may use again, and which is
// sent by a copy for that.
func BenchmarkFiguresDownUploaded(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket)
	attached(b, gw)
	web, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(b, err)
	defer web.Close()
	require.NoError(b, put(web, bufio.NewReader(web), modelFile(b)))
	down(b, gw)
}

// down fetches model m beside raw TCP.
func down(b *testing.B, gw *remotetest.Gateway) {
	b.Helper()
	floor := remotetest.StartFloor(b)
	conn, err := net.Dial("tcp", floor.TCP)
	require.NoError(b, err)
	defer conn.Close()
	client, piece := figuresClient(), make([]byte, 1<<20)
	rounds(b, "GB/s", gigabytes(modelBytes), func() error {
		resp, err := client.Get(gw.HTTP() + "/v1/models/m/model.safetensors")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for {
			if _, err := resp.Body.Read(piece); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
		}
	}, func() error { return remotetest.Down(conn, modelBytes, piece) })
}

func BenchmarkFiguresUp(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket)
	attached(b, gw)
	floor := remotetest.StartFloor(b)
	conn, err := net.Dial("tcp", floor.TCP)
	require.NoError(b, err)
	defer conn.Close()
	file := modelFile(b)
	web, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(b, err)
	defer web.Close()
	answers := bufio.NewReader(web)
	rounds(b, "GB/s", gigabytes(modelBytes), func() error { return put(web, answers, file) }, func() error { return remotetest.Up(conn, file) })
}

// put uploads a file as the floor is given it: written to the connection from where it is.
func put(conn net.Conn, answers *bufio.Reader, file []byte) error {
	if _, err := fmt.Fprintf(conn, "PUT /v1/models/m/model.safetensors HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", len(file)); err != nil {
		return err
	}
	for rest := file; len(rest) > 0; {
		n := min(len(rest), 1<<20)
		if _, err := conn.Write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	resp, err := http.ReadResponse(answers, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusCreated {
		return fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// modelFile is a model of modelBytes as a file.
func modelFile(b *testing.B) []byte {
	b.Helper()
	dev, err := host.Open()
	require.NoError(b, err)
	defer dev.Close()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 8, Bytes: modelBytes, Seed: 1})
	require.NoError(b, err)
	defer sd.Close()
	var list []safetensors.TensorInfo
	for name, t := range sd.All() {
		list = append(list, safetensors.TensorInfo{Name: name, DType: t.DType(), Shape: t.Shape()})
	}
	header, err := safetensors.NewHeader(list, nil)
	require.NoError(b, err)
	var out bytes.Buffer
	out.Grow(modelBytes + 1<<20)
	require.NoError(b, safetensors.Write(&out, header, func(w io.Writer, info safetensors.TensorInfo) error {
		t, _ := sd.Get(info.Name)
		_, err := t.WriteTo(w)
		return err
	}))
	return out.Bytes()
}

// callsEach is how many calls a round makes.
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

// BenchmarkFiguresProtocol is JSON-RPC without the owner: a method that the gateway answers itself.
func BenchmarkFiguresProtocol(b *testing.B) {
	gw := remotetest.StartGateway(b, "off")
	floor := remotetest.StartFloor(b)
	client := figuresClient()
	rounds(b, "µs", microseconds, func() error {
		return repeat(client, gw.HTTP()+"/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"release_result","params":{"id":"x"}}`, `{"released":false}`)
	}, func() error {
		return repeat(client, "http://"+floor.HTTP+"/add", `{"jsonrpc":"2.0","id":1,"params":{"a":1,"b":2}}`, "3")
	})
}

// BenchmarkFiguresCall is a call of an owner's function over JSON-RPC. The floor has the function itself, so the
// owner's part, which is a process further, is in the ratio.
func BenchmarkFiguresCall(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket)
	attached(b, gw)
	floor := remotetest.StartFloor(b)
	client := figuresClient()
	rounds(b, "µs", microseconds, func() error {
		return repeat(client, gw.HTTP()+"/jsonrpc", `{"jsonrpc":"2.0","id":1,"method":"call_function","params":{"name":"add","kwargs":{"a":1,"b":2}}}`, "3")
	}, func() error {
		return repeat(client, "http://"+floor.HTTP+"/add", `{"jsonrpc":"2.0","id":1,"params":{"a":1,"b":2}}`, "3")
	})
}
