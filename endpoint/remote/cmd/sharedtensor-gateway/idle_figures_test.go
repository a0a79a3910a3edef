package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// BenchmarkFiguresIdle opens 10,000 connections of each protocol to a gateway, and reports the memory of the gateway for
// each, and the time of a request on one of them. The hard limit of descriptors must allow 10,000 more in this process
// and in the gateway. Run it with -benchtime 1x.
func BenchmarkFiguresIdle(b *testing.B) {
	const each = 10_000
	for name, connect := range map[string]func(b *testing.B, gw *remotetest.Gateway) (ask func() error){"http": idleHTTP, "grpc": idleGRPC, "nats": idleNATS} {
		b.Run(name, func(b *testing.B) {
			gw := remotetest.StartGateway(b, "off", "--nats", "embedded", "--nats-listen", "127.0.0.1:0", "--max-connections", strconv.Itoa(each+100), "--access-log", "off")
			require.NoError(b, connect(b, gw)())
			before := remotetest.ProcStatus(b, gw.PID(), "VmRSS")
			asks := make([]func() error, each)
			for i := range asks {
				asks[i] = connect(b, gw)
			}
			for _, ask := range asks {
				require.NoError(b, ask())
			}
			time.Sleep(time.Second) // buffers of the handshakes are collected
			begin := time.Now()
			for _, ask := range asks {
				require.NoError(b, ask())
			}
			took := time.Since(begin)
			b.ReportMetric(float64(remotetest.ProcStatus(b, gw.PID(), "VmRSS")-before)/each, "KiB/connection")
			b.ReportMetric(float64(took.Microseconds())/each, "µs/request")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func dialIdle(b *testing.B, address string) (net.Conn, *bufio.Reader) {
	b.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close() })
	return conn, bufio.NewReaderSize(conn, 512)
}

func idleHTTP(b *testing.B, gw *remotetest.Gateway) func() error {
	conn, in := dialIdle(b, gw.Addresses.HTTP)
	return func() error {
		fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
}

// idleGRPC returns a ping on an HTTP/2 connection (RFC 9113: a frame is 3 bytes of length, type, flags, 4 bytes of stream).
func idleGRPC(b *testing.B, gw *remotetest.Gateway) func() error {
	const settings, ping, ack = 4, 6, 1
	conn, in := dialIdle(b, gw.Addresses.GRPC)
	_, err := conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 0, 0, 0, settings, 0, 0, 0, 0, 0))
	require.NoError(b, err)
	return func() error {
		if _, err := conn.Write([]byte{0, 0, 8, ping, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}); err != nil {
			return err
		}
		for {
			var header [9]byte
			if _, err := io.ReadFull(in, header[:]); err != nil {
				return err
			}
			if _, err := in.Discard(int(header[0])<<16 | int(header[1])<<8 | int(header[2])); err != nil {
				return err
			}
			if header[3] == ping && header[4]&ack != 0 {
				return nil
			}
		}
	}
}

func idleNATS(b *testing.B, gw *remotetest.Gateway) func() error {
	at, err := url.Parse(gw.Addresses.NATS)
	require.NoError(b, err)
	conn, in := dialIdle(b, at.Host)
	_, err = in.ReadString('\n')
	require.NoError(b, err)
	fmt.Fprint(conn, "CONNECT {\"verbose\":false}\r\n")
	return func() error {
		fmt.Fprint(conn, "PING\r\n")
		for {
			line, err := in.ReadString('\n')
			if err != nil || strings.HasPrefix(line, "PONG") {
				return err
			}
			if strings.HasPrefix(line, "-ERR") {
				return fmt.Errorf("%s", line)
			}
		}
	}
}
