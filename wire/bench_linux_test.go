package wire

import (
	"context"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func init() {
	roles["bare echo"] = func(c *net.UnixConn) error {
		var b [64]byte
		for {
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return nil
			}
			if _, err := c.Write(b[:]); err != nil {
				return err
			}
		}
	}
	roles["frame echo"] = func(u *net.UnixConn) error {
		c, err := NewConn(u, Limits{})
		if err != nil {
			return err
		}
		for {
			f, err := c.Receive()
			if err != nil {
				return nil
			}
			if err := c.SendLater(KindResponse, f.ID, f.Body); err != nil {
				return err
			}
		}
	}
}

// BenchmarkPing measures a round trip of 64 bytes to another process: bare, as frames, and as calls through a Receiver,
// in turns. The ratios of the medians are the cost of frames and of calls.
func BenchmarkPing(b *testing.B) {
	c, _ := startRole(b, "bare echo")
	var buf [64]byte
	bare := func() {
		if _, err := c.Write(buf[:]); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf[:]); err != nil {
			b.Fatal(err)
		}
	}
	u, _ := startRole(b, "frame echo")
	conn, err := NewConn(u, Limits{})
	require.NoError(b, err)
	defer conn.Close()
	frames := func() {
		if err := conn.Send(KindRequest, 1, body48); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Receive(); err != nil {
			b.Fatal(err)
		}
	}
	u, _ = startRole(b, "frame echo")
	called, err := NewConn(u, Limits{})
	require.NoError(b, err)
	answer := make(chan Frame, 1)
	receiver := NewReceiver(called, func(f Frame) error {
		answer <- f
		return nil
	})
	var running sync.WaitGroup
	running.Go(func() { receiver.Run() })
	calls := func() {
		if err := called.Send(KindRequest, 1, body48); err != nil {
			b.Fatal(err)
		}
		receiver.Wait(context.Background(), answer)
	}
	var times [3][]time.Duration
	const stretch = 200 // consecutive rounds of one kind, so that each starts with warm caches
	for b.Loop() {
		for i, round := range []func(){bare, frames, calls} {
			for range stretch {
				t := time.Now()
				round()
				times[i] = append(times[i], time.Since(t))
			}
		}
	}
	b.StopTimer()
	called.Close()
	running.Wait()
	var p50 [3]float64
	for i := range times {
		slices.Sort(times[i])
		p50[i] = float64(times[i][len(times[i])/2].Nanoseconds())
	}
	b.ReportMetric(p50[0], "bare-p50-ns")
	b.ReportMetric(p50[1], "frames-p50-ns")
	b.ReportMetric(p50[2], "calls-p50-ns")
	b.ReportMetric(p50[1]/p50[0], "frames-ratio")
	b.ReportMetric(p50[2]/p50[0], "calls-ratio")
}

// body48 is the body of a frame of 64 bytes.
var body48 = append([]byte{0x58, 46}, make([]byte, 46)...)

// BenchmarkCallers measures the throughput of round trips by many goroutines over one connection, and the median with
// one goroutine.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 8, 64} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			u, _ := startRole(b, "frame echo")
			conn, err := NewConn(u, Limits{})
			require.NoError(b, err)
			answers := make([]chan Frame, callers)
			for i := range answers {
				answers[i] = make(chan Frame, 1)
			}
			receiver := NewReceiver(conn, func(f Frame) error {
				answers[f.ID] <- f
				return nil
			})
			var running, senders sync.WaitGroup
			running.Go(func() { receiver.Run() })
			b.ReportAllocs()
			b.ResetTimer()
			var calls atomic.Int64
			for i := range callers {
				senders.Go(func() {
					for calls.Add(1) <= int64(b.N) {
						if conn.Send(KindRequest, uint64(i), body48) != nil {
							b.Error("send failed")
							return
						}
						receiver.Wait(context.Background(), answers[i])
					}
				})
			}
			senders.Wait()
			b.StopTimer()
			conn.Close()
			running.Wait()
		})
	}
}

// BenchmarkSendReceive measures one frame through a pair of connections on one goroutine: the cost of the package
// without the scheduler.
func BenchmarkSendReceive(b *testing.B) {
	x, y, err := Pipe(Limits{})
	require.NoError(b, err)
	defer x.Close()
	defer y.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := x.Send(KindRequest, 1, body48); err != nil {
			b.Fatal(err)
		}
		if _, err := y.Receive(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdle measures the memory that a waiting connection costs its process, including its receiving goroutine and
// excluding the kernel.
func BenchmarkIdle(b *testing.B) {
	const connections = 1000
	memory := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	for b.Loop() {
		before := memory()
		var waiting sync.WaitGroup
		var received atomic.Int64
		ends := make([]*Conn, 0, 2*connections)
		for range connections {
			x, y, err := Pipe(Limits{})
			require.NoError(b, err)
			ends = append(ends, x, y)
			waiting.Go(func() {
				for {
					if _, err := y.Receive(); err != nil {
						return
					}
					received.Add(1)
				}
			})
			for range 3 {
				require.NoError(b, x.Send(KindRequest, 1, body48))
			}
		}
		for received.Load() < 3*connections {
			runtime.Gosched()
		}
		// Both ends are in this process, so this is an upper bound for one end with its goroutine.
		b.ReportMetric(float64(memory()-before)/connections, "B/connection")
		for _, c := range ends {
			c.Close()
		}
		waiting.Wait()
	}
}
