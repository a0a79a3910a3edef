package models_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/module/safetensors"
)

// The benchmarks of the README's figures compare the gateway with a floor, the minimum that the same transfer needs.
// Both run alternately, each side in a separate process. An iteration is one round:
//
//	go test -run '^$' -bench Figures -benchtime 15x ./models
//
// "ratio" is the median over the rounds: gateway to floor in bytes per second for transfers, and in time per call for
// calls.

// modelBytes is the size of the transferred model.
const modelBytes = 256 << 20

// figuresClient returns an HTTP client that uses one connection with 64 KiB buffers.
func figuresClient() *http.Client {
	return &http.Client{Transport: &http.Transport{ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10, MaxIdleConnsPerHost: 4}}
}

func gigabytes(n int) func(time.Duration) float64 {
	return func(d time.Duration) float64 { return float64(n) / 1e9 / d.Seconds() }
}

func BenchmarkFiguresDown(b *testing.B) {
	owner := remotetest.StartOwner(b, "--model", fmt.Sprintf("m=%d", modelBytes))
	gw := remotetest.StartGateway(b, owner.Socket)
	gw.Attached(b)
	down(b, gw)
}

// BenchmarkFiguresDownUploaded is BenchmarkFiguresDown for an uploaded model. The gateway copies it to the connection
// because it may reuse its memory.
func BenchmarkFiguresDownUploaded(b *testing.B) {
	owner := remotetest.StartOwner(b)
	gw := remotetest.StartGateway(b, owner.Socket)
	gw.Attached(b)
	web, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(b, err)
	defer web.Close()
	require.NoError(b, put(web, bufio.NewReader(web), modelFile(b)))
	down(b, gw)
}

// down compares the download of model m with raw TCP.
func down(b *testing.B, gw *remotetest.Gateway) {
	b.Helper()
	floor := remotetest.StartFloor(b)
	conn, err := net.Dial("tcp", floor.TCP)
	require.NoError(b, err)
	defer conn.Close()
	client, piece := figuresClient(), make([]byte, 1<<20)
	remotetest.Rounds(b, "GB/s", gigabytes(modelBytes), func() error {
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
	gw.Attached(b)
	floor := remotetest.StartFloor(b)
	conn, err := net.Dial("tcp", floor.TCP)
	require.NoError(b, err)
	defer conn.Close()
	file := modelFile(b)
	web, err := net.Dial("tcp", gw.Addresses.HTTP)
	require.NoError(b, err)
	defer web.Close()
	answers := bufio.NewReader(web)
	remotetest.Rounds(b, "GB/s", gigabytes(modelBytes), func() error { return put(web, answers, file) }, func() error { return remotetest.Up(conn, file) })
}

// put uploads a file to the floor, written to the connection without a copy.
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

// modelFile returns a model of modelBytes as a file.
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
