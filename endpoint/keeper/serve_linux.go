package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transport"
	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Config configures a keeper process.
type Config struct {
	// Socket is the path of its socket.
	Socket string
	// Idle is the time without descriptors and connections after which the keeper ends; 0 means 10 s.
	Idle time.Duration
	// Logger reports refused connections and requests; nil means none.
	Logger *slog.Logger
}

// Serve runs a keeper until ctx ends or it is idle. It holds descriptors for owners of the same user and does nothing
// else. When it ends, the descriptors are closed: memory that no process maps is lost. It fails with
// [endpoint.ErrInUse] if another keeper serves on the socket.
func Serve(ctx context.Context, c Config) error {
	if c.Idle == 0 {
		c.Idle = 10 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	socket, err := transport.Listen(c.Socket, transport.Permissions{})
	if err != nil {
		if errors.Is(err, status.ErrInUse) {
			err = fmt.Errorf("%w: a keeper serves on %s", status.ErrInUse, c.Socket)
		}
		return err
	}
	k := &keeper{log: c.Logger, idle: c.Idle, held: map[string]*os.File{}, peers: map[*peer]bool{}, most: transport.MaxOpenFiles() - unused}
	ctx, k.stop = context.WithCancel(ctx)
	defer k.stop()
	k.timer = time.AfterFunc(c.Idle, k.stop)
	ended := context.AfterFunc(ctx, func() { socket.Close() })
	defer ended()
	defer k.close()
	for {
		conn, err := socket.Accepting().AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			time.Sleep(10 * time.Millisecond) // until a connection ends
		case err != nil:
			return fmt.Errorf("accept on %s: %w", c.Socket, err)
		default:
			k.connections.Go(func() { k.serve(ctx, conn) })
		}
	}
}

// keeper holds the descriptors.
type keeper struct {
	log         *slog.Logger
	idle        time.Duration
	stop        func()
	timer       *time.Timer // ends an idle keeper
	most        int         // descriptors
	connections sync.WaitGroup

	mu    sync.Mutex
	peers map[*peer]bool
	held  map[string]*os.File
}

// peer is a connection.
type peer struct {
	conn   *wire.Conn
	socket syscall.RawConn
	ended  chan struct{} // closed after the last request
}

// serve answers the requests of one connection.
func (k *keeper) serve(ctx context.Context, socket *net.UnixConn) {
	raw, err := socket.SyscallConn()
	var conn *wire.Conn
	if err == nil {
		conn, err = wire.NewConn(socket, limits)
	}
	if err != nil {
		k.log.Warn("connection refused", "error", err)
		return
	}
	defer conn.Close()
	if peer := conn.Peer(); !peer.SameUser() {
		k.log.Warn("connection refused: it is another user's", "uid", peer.UID, "pid", peer.PID)
		return
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	p := &peer{conn: conn, socket: raw, ended: make(chan struct{})}
	k.connect(p, true)
	defer k.connect(p, false)
	defer close(p.ended)
	for {
		frame, err := conn.Receive()
		if err == nil {
			err = k.answer(p, frame)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ECONNRESET) {
				k.log.Warn("connection ended", "pid", conn.Peer().PID, "error", err)
			}
			return
		}
	}
}

// connect adds or removes a connection, and starts or stops the timer of an idle keeper.
func (k *keeper) connect(p *peer, connected bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if connected {
		k.peers[p] = true
	} else {
		delete(k.peers, p)
	}
	if len(k.peers) == 0 && len(k.held) == 0 {
		k.timer.Reset(k.idle)
	} else {
		k.timer.Stop()
	}
}

// settle waits until the requests of processes that have ended are performed, because owners do not wait for the answers
// to all of theirs.
func (k *keeper) settle(except *peer) {
	k.mu.Lock()
	peers := slices.Collect(maps.Keys(k.peers))
	k.mu.Unlock()
	limit := time.NewTimer(settleTime)
	defer limit.Stop()
	for _, p := range peers {
		if p == except || !hungUp(p.socket) {
			continue
		}
		select {
		case <-p.ended:
		case <-limit.C:
			k.log.Warn("requests of a process that has ended are not performed yet", "pid", p.conn.Peer().PID)
			return
		}
	}
}

// settleTime limits the wait for requests that have arrived: performing them takes microseconds.
const settleTime = answerTime / 2

// answer performs one request and sends the answer, if the peer still receives it.
func (k *keeper) answer(p *peer, frame wire.Frame) error {
	defer frame.Files.Close()
	var in request
	if err := decode(frame, &in); err != nil {
		return err
	}
	if in.Operation == opNames {
		k.settle(p)
	}
	out := response{PID: os.Getpid()}
	var files []*os.File
	err := fmt.Errorf("protocol %d: this keeper has protocol %d", in.Protocol, protocol)
	if in.Protocol == protocol {
		out.Names, files, out.Room, err = k.perform(in, frame)
	}
	if err != nil {
		k.log.Warn("request refused", "pid", p.conn.Peer().PID, "error", err)
		out.Error = message.CutText(err.Error(), message.MaxErrorMessage)
	}
	defer closeAll(files)
	body, err := message.Marshal(out)
	if err != nil {
		return err
	}
	if err := p.conn.Send(wire.KindResponse, frame.ID, body, files...); err != nil {
		k.log.Warn("answer not sent", "pid", p.conn.Peer().PID, "error", err) // further requests may have arrived
	}
	return nil
}

// perform performs a request, and returns how many more descriptors there is room for. The caller owns the files.
func (k *keeper) perform(in request, frame wire.Frame) (names []string, files []*os.File, room int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	names, files, err = k.performLocked(in, frame)
	return names, files, k.most - len(k.held), err
}

func (k *keeper) performLocked(in request, frame wire.Frame) (names []string, files []*os.File, err error) {
	switch in.Operation {
	case opPut:
		return nil, nil, k.putLocked(in.Names, frame)
	case opRemove:
		for _, name := range in.Names {
			k.dropLocked(name)
		}
		return nil, nil, nil
	case opNames:
		return slices.Sorted(maps.Keys(k.held)), nil, nil
	case opGet:
		for _, name := range in.Names {
			if k.held[name] == nil {
				continue
			}
			f, err := duplicate(k.held[name])
			if err != nil {
				closeAll(files)
				return nil, nil, err
			}
			names, files = append(names, name), append(files, f)
		}
		return names, files, nil
	}
	return nil, nil, fmt.Errorf("operation %d is not known", in.Operation)
}

// putLocked takes the descriptor of a frame.
func (k *keeper) putLocked(names []string, frame wire.Frame) error {
	if len(names) != 1 || frame.Files.Len() != 1 {
		return fmt.Errorf("%d names for %d descriptors", len(names), frame.Files.Len())
	}
	if err := checkName(names[0]); err != nil {
		return err
	}
	if len(k.held) >= k.most {
		return fmt.Errorf("the keeper holds %d descriptors, the limit of open files allows no more", len(k.held))
	}
	f := frame.Files.Take(0)
	if f == nil {
		return errors.New("the descriptor was lost")
	}
	if err := checkMemory(f); err != nil {
		f.Close()
		return err
	}
	status.Reach("keeper received")
	k.dropLocked(names[0]) // an owner that connects again stores the same descriptor again
	k.held[names[0]] = f
	status.Reach("keeper held")
	return nil
}

// dropLocked closes the descriptor of a name. The memory is freed if it was the last reference.
func (k *keeper) dropLocked(name string) {
	if f := k.held[name]; f != nil {
		delete(k.held, name)
		f.Close()
	}
}

// close ends the connections and closes the descriptors.
func (k *keeper) close() {
	k.stop()
	k.connections.Wait()
	k.timer.Stop()
	for _, f := range k.held {
		f.Close()
	}
}
