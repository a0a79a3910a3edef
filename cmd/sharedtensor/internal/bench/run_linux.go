package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/child"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// bench owns the processes, sockets and clients of one benchmark.
type bench struct {
	Options
	ctx     context.Context
	dev     *host.Device
	dir     string
	sockets int
	undo    []func()
	results []Result
}

// open prepares a benchmark. Everything that it starts also ends with its context.
func (b *bench) open() (err error) {
	if b.dev, err = host.Open(); err != nil {
		return err
	}
	b.dir, err = os.MkdirTemp("", directoryPrefix)
	b.undo = append(b.undo, func() { _ = os.RemoveAll(b.dir); _ = b.dev.Close() })
	return err
}

// close ends all processes and closes all clients, in reverse order of creation.
func (b *bench) close() {
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
}

// add adds a result.
func (b *bench) add(name string, value, floor float64, unit string) {
	b.results = append(b.results, newResult(name, value, floor, unit))
}

// start starts a worker.
func (b *bench) start() (*child.Process, error) {
	p, err := child.Start(b.ctx, "worker", append(slices.Clone(b.Worker), b.dir)...)
	if err == nil {
		b.undo = append(b.undo, func() { _ = p.Kill() })
	}
	return p, err
}

// do sends an order and waits for its report.
func do(p *child.Process, o order) (r report, err error) {
	err = p.Ask(o.Do, o, &r)
	return r, err
}

// socket returns the path of a new socket.
func (b *bench) socket() string {
	b.sockets++
	return filepath.Join(b.dir, fmt.Sprintf("%d.sock", b.sockets))
}

// owner starts a process that serves on a new socket, and connects a client to it.
func (b *bench) owner() (*child.Process, *endpoint.Client, error) {
	p, err := b.start()
	if err != nil {
		return nil, nil, err
	}
	socket := b.socket()
	if _, err = do(p, order{Do: "serve", Socket: socket}); err != nil {
		return nil, nil, err
	}
	c, err := endpoint.Dial(b.ctx, endpoint.ClientOptions{Socket: socket, Devices: []driver.Device{b.dev}, Label: "benchmark"})
	if err != nil {
		return nil, nil, err
	}
	b.undo = append(b.undo, func() { _ = c.Close() })
	return p, c, nil
}

// bare makes the process listen on a new bare socket, and connects to it. It returns the socket's path.
func (b *bench) bare(p *child.Process, what string) (*net.UnixConn, string, error) {
	o := order{Do: what, Socket: b.socket()}
	if _, err := do(p, o); err != nil {
		return nil, "", err
	}
	c, err := b.dialBare(o.Socket)
	return c, o.Socket, err
}

func (b *bench) dialBare(socket string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	b.undo = append(b.undo, func() { _ = c.Close() })
	context.AfterFunc(b.ctx, func() { _ = c.Close() })
	return c, nil
}

// pinger returns a subject that pings an owner.
func (b *bench) pinger(c *endpoint.Client) subject {
	return subject{rounds: 200, run: func() (time.Duration, error) { return c.Ping(b.ctx) }}
}

// barePing measures a round trip of 64 bytes on a bare socket. A ping frame is not larger.
func barePing(c net.Conn) (time.Duration, error) {
	var message [64]byte
	start := time.Now()
	if _, err := c.Write(message[:]); err != nil {
		return 0, err
	}
	_, err := io.ReadFull(c, message[:])
	return time.Since(start), err
}

// ping measures the round trip of an empty request. The floor is a round trip over a bare Unix socket.
func (b *bench) ping() error {
	b.stage("ping")
	p, c, err := b.owner()
	if err != nil {
		return err
	}
	bare, _, err := b.bare(p, "echo")
	if err != nil {
		return err
	}
	all, err := b.alternate(b.pinger(c), subject{rounds: 200, run: func() (time.Duration, error) { return barePing(bare) }})
	if err != nil {
		return err
	}
	b.add("ping-p50", µs(all[0].quiet()), µs(all[1].quiet()), "µs")
	b.add("ping-p99", µs(all[0].quantile(0.99)), µs(all[1].quantile(0.99)), "µs")
	return nil
}

// attacher returns a subject that attaches a model. It then releases the model and waits until the owner has processed
// the release, which is not measured.
func (b *bench) attacher(c *endpoint.Client, name string, rounds int) subject {
	return subject{rounds: rounds, run: func() (time.Duration, error) {
		start := time.Now()
		h, err := c.Acquire(b.ctx, name, endpoint.AcquireOptions{})
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		if err := h.Close(); err != nil {
			return 0, err
		}
		_, err = c.Ping(b.ctx)
		return took, err
	}}
}

// attach measures the time until the tensors of another process can be used, for several tensor counts. The floor
// passes one descriptor over a bare Unix socket on request and maps 64 MiB.
func (b *bench) attach() error {
	b.stage("attach")
	owner, c, err := b.owner()
	if err != nil {
		return err
	}
	bare, _, err := b.bare(owner, "pass")
	if err != nil {
		return err
	}
	subjects := []subject{{rounds: 40, run: func() (time.Duration, error) { return attachBare(bare) }}}
	counts := []int{1, 100, 1000, 10000}
	for _, n := range counts {
		name := fmt.Sprint(n)
		if _, err := do(owner, order{Do: "publish", Name: name, Tensors: n, Bytes: 1 << 20}); err != nil {
			return err
		}
		subjects = append(subjects, b.attacher(c, name, max(8, 40/n)))
	}
	all, err := b.alternate(subjects...)
	if err != nil {
		return err
	}
	for i, n := range counts {
		b.add(fmt.Sprintf("attach-%d", n), µs(all[i+1].quiet()), µs(all[0].quiet()), "µs")
	}
	b.add("attach-each", µs(all[4].quiet()-all[3].quiet())/float64(counts[3]-counts[2]), 0, "µs")
	return nil
}

// attachBare requests a descriptor and maps it. Only this is measured. It then unmaps and closes it.
func attachBare(c *net.UnixConn) (time.Duration, error) {
	var b [1]byte
	var control [64]byte
	start := time.Now()
	if _, err := c.Write(b[:]); err != nil {
		return 0, err
	}
	_, n, _, _, err := c.ReadMsgUnix(b[:], control[:])
	if err != nil {
		return 0, err
	}
	messages, err := syscall.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return 0, errors.Join(errors.New("the worker passed no descriptor"), err)
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, errors.Join(errors.New("the worker passed no descriptor"), err)
	}
	defer func() { _ = syscall.Close(fds[0]) }()
	mapping, err := syscall.Mmap(fds[0], 0, passedBytes, syscall.PROT_READ, syscall.MAP_SHARED)
	took := time.Since(start)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	return took, os.NewSyscallError("munmap", syscall.Munmap(mapping))
}

// sizes returns the sizes that are measured: none over a quarter of the available memory, which leaves memory for other
// processes on this host.
func (b *bench) sizes(all ...int64) ([]int64, error) {
	available, err := procField("/proc/meminfo", "MemAvailable:")
	return slices.DeleteFunc(all, func(size int64) bool { return size > min(b.MaxBytes, available/4) }), err
}

// bytes measures whether the cost of attaching depends on the size of the model. The floor is a model of 1 MiB with the
// same number of tensors.
func (b *bench) bytes() error {
	owner, c, err := b.owner()
	if err != nil {
		return err
	}
	if _, err := do(owner, order{Do: "publish", Name: "small", Tensors: 100, Bytes: 1 << 20}); err != nil {
		return err
	}
	sizes, err := b.sizes(4<<20, 64<<20, 1<<30, 4<<30)
	if err != nil {
		return err
	}
	for _, size := range sizes {
		b.stage("attach %d MiB", size>>20)
		if _, err := do(owner, order{Do: "publish", Name: "large", Tensors: 100, Bytes: size}); err != nil {
			return err
		}
		all, err := b.alternate(b.attacher(c, "large", 20), b.attacher(c, "small", 20))
		if err != nil {
			return err
		}
		b.add(fmt.Sprintf("attach-%dMiB", size>>20), µs(all[0].quiet()), µs(all[1].quiet()), "µs")
		if _, err := do(owner, order{Do: "withdraw", Name: "large"}); err != nil {
			return err
		}
	}
	return nil
}

// load measures how fast a file in the page cache is loaded into shared memory. The floor is a plain read of the same
// file into fresh anonymous memory. Both include allocation and exclude freeing.
func (b *bench) load() error {
	sizes, err := b.sizes(4<<20, 256<<20, 1<<30)
	if err != nil || len(sizes) == 0 {
		return err
	}
	size := sizes[len(sizes)-1]
	b.stage("load: writing a file of %d MiB", size>>20)
	path := filepath.Join(b.dir, "model.safetensors")
	if err := module.SynthesizeFile(path, module.Synthetic{Tensors: 200, Bytes: size}); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b.stage("load")
	all, err := b.alternate(subject{rounds: 1, run: func() (time.Duration, error) {
		start := time.Now()
		sd, err := module.Load(b.ctx, b.dev, path, module.LoadOptions{})
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		return took, sd.Close()
	}}, subject{rounds: 1, run: func() (time.Duration, error) { return plainRead(f, int(info.Size())) }})
	if err != nil {
		return err
	}
	rate := func(t turns) float64 { return float64(info.Size()) / t.quantile(0.5).Seconds() / (1 << 30) }
	b.add(fmt.Sprintf("load-%dMiB", size>>20), rate(all[0]), rate(all[1]), "GiB/s")
	return nil
}

// plainRead reads the file into freshly mapped memory, because Go's allocator would reuse memory.
func plainRead(f *os.File, size int) (time.Duration, error) {
	start := time.Now()
	memory, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return 0, os.NewSyscallError("mmap", err)
	}
	_, err = io.ReadFull(io.NewSectionReader(f, 0, int64(size)), memory)
	took := time.Since(start)
	return took, errors.Join(err, os.NewSyscallError("munmap", syscall.Munmap(memory)))
}

// connect connects idle clients to the owner of another client. Each has completed one request, so the owner has
// allocated everything for it.
func (b *bench) connect(other *endpoint.Client, count int) error {
	for range count {
		c, err := endpoint.Dial(b.ctx, endpoint.ClientOptions{Socket: other.Socket()})
		if err != nil {
			return err
		}
		b.undo = append(b.undo, func() { _ = c.Close() })
		if _, err := c.Ping(b.ctx); err != nil {
			return err
		}
	}
	return nil
}

// clients measures what idle clients cost an owner. Memory is the growth of the owner's resident anonymous memory:
// heap, stacks and the Go runtime, without socket buffers of the kernel and mapped files. The floor is a process with
// the same number of bare connections and one goroutine for each. The ping is sent by one more client, in turn with a
// ping to an owner without other clients.
func (b *bench) clients() error {
	b.stage("%d clients", b.Clients)
	crowded, c, err := b.owner()
	if err != nil {
		return err
	}
	quiet, other, err := b.owner()
	if err != nil {
		return err
	}
	ours, err := b.growth(crowded, func() error { return b.connect(c, b.Clients) })
	if err != nil {
		return err
	}
	_, socket, err := b.bare(quiet, "echo")
	if err != nil {
		return err
	}
	floor, err := b.growth(quiet, func() error {
		for range b.Clients {
			conn, err := b.dialBare(socket)
			if err != nil {
				return err
			}
			if _, err := barePing(conn); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	all, err := b.alternate(b.pinger(c), b.pinger(other))
	if err != nil {
		return err
	}
	b.add("client-memory", ours, floor, "KiB")
	b.add(fmt.Sprintf("ping-%d-idle", b.Clients), µs(all[0].quiet()), µs(all[1].quiet()), "µs")
	return nil
}

// growth returns the growth of a process in KiB per client.
func (b *bench) growth(p *child.Process, connect func() error) (float64, error) {
	before, err := do(p, order{Do: "measure"})
	if err != nil {
		return 0, err
	}
	if err := connect(); err != nil {
		return 0, err
	}
	after, err := do(p, order{Do: "measure"})
	return float64(max(0, after.Anonymous-before.Anonymous)) / 1024 / float64(b.Clients), err
}

// shutdown measures the time from the call of Shutdown until an owner with idle clients has released all resources.
func (b *bench) shutdown() error {
	count := b.Clients / 10
	b.stage("shutdown")
	all, err := b.alternate(subject{rounds: 1, run: func() (time.Duration, error) {
		owner, c, err := b.owner()
		if err != nil {
			return 0, err
		}
		if err := b.connect(c, count-1); err != nil {
			return 0, err
		}
		r, err := do(owner, order{Do: "shutdown"})
		return r.Took, errors.Join(err, owner.Kill())
	}})
	if err == nil {
		b.add(fmt.Sprintf("shutdown-%d-idle", count), ms(all[0].quantile(0.5)), 0, "ms")
	}
	return err
}

// kill measures the time from a client's SIGKILL until the owner has released the client's references, as seen by
// another client. The floor is the time until the peer of a bare socket of the same process reads the end of the
// stream.
func (b *bench) kill() error {
	b.stage("kill")
	owner, c, err := b.owner()
	if err != nil {
		return err
	}
	if _, err := do(owner, order{Do: "publish", Name: "small", Tensors: 100, Bytes: 1 << 20}); err != nil {
		return err
	}
	var floor []time.Duration
	all, err := b.alternate(subject{rounds: 1, run: func() (time.Duration, error) {
		back, ended, err := b.killOne(c)
		floor = append(floor, ended)
		return back, err
	}})
	if err == nil {
		b.add("kill", ms(all[0].quantile(0.5)), ms(turns{floor}.quantile(0.5)), "ms")
	}
	return err
}

// killOne starts a client that acquires the model, and kills it.
func (b *bench) killOne(observer *endpoint.Client) (back, ended time.Duration, err error) {
	victim, err := b.start()
	if err != nil {
		return 0, 0, err
	}
	bare, _, err := b.bare(victim, "echo")
	if err != nil {
		return 0, 0, err
	}
	if _, err := do(victim, order{Do: "acquire", Socket: observer.Socket(), Name: "small"}); err != nil {
		return 0, 0, err
	}
	seen := make(chan time.Time, 1)
	go func() {
		var one [1]byte
		_, _ = bare.Read(one[:]) // nothing is ever sent: Read returns at the end of the stream
		seen <- time.Now()
	}()
	start := time.Now()
	if err := victim.Signal(); err != nil {
		return 0, 0, err
	}
	for held := true; held; {
		info, err := observer.Info(b.ctx, "small")
		if err != nil {
			return 0, 0, err
		}
		held = len(info.Versions[0].Holders) > 0
	}
	back = time.Since(start)
	return back, (<-seen).Sub(start), victim.Kill()
}
