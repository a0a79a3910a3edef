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
	k := &keeper{log: c.Logger, idle: c.Idle, held: map[string]*os.File{}, peers: map[*peer]bool{}, most: min(transport.MaxOpenFiles()-unused, maxHeld)}
	ctx, k.stop = context.WithCancel(ctx)
	defer k.stop()
	k.timer = time.AfterFunc(c.Idle, k.stop)
	closed := make(chan struct{})
	context.AfterFunc(ctx, func() {
		defer close(closed)
		socket.Close() // removes the files, which would look like those of a killed keeper
	})
	defer func() { <-closed }() // k.close ends ctx
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
	if peer := conn.Peer(); peer.Mapped() != nil {
		k.log.Warn("connection refused", "pid", peer.PID, "error", peer.Mapped())
		return
	} else if !peer.SameUser() {
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

// perform performs a request, and returns the number of further descriptors that there is room for. The caller owns the
// files. Descriptors are checked and closed without the lock, because both may wait for what is behind a descriptor.
func (k *keeper) perform(in request, frame wire.Frame) (names []string, files []*os.File, room int, err error) {
	var put *os.File
	if in.Operation == opPut {
		if put, err = taken(in.Names, frame); err != nil {
			in.Operation = opRefuse
		}
	}
	k.mu.Lock()
	var freed []*os.File
	switch in.Operation {
	case opRefuse:
	case opPut:
		freed, err = k.putLocked(in.Names[0], put)
	case opRemove:
		for _, name := range in.Names {
			freed = k.dropLocked(name, freed)
		}
	case opNames:
		names = slices.Sorted(maps.Keys(k.held))
	case opGet:
		names, files, err = k.getLocked(in.Names)
	default:
		err = fmt.Errorf("operation %d is not known", in.Operation)
	}
	room = k.most - len(k.held)
	k.mu.Unlock()
	closeAll(freed)
	return names, files, room, err
}

// taken returns the descriptor of a frame for the only name. The caller owns it.
func taken(names []string, frame wire.Frame) (*os.File, error) {
	if len(names) != 1 || frame.Files.Len() != 1 {
		return nil, fmt.Errorf("%d names for %d descriptors", len(names), frame.Files.Len())
	}
	if err := checkName(names[0]); err != nil {
		return nil, err
	}
	f := frame.Files.Take(0)
	if f == nil {
		return nil, errors.New("the descriptor was lost")
	}
	if err := checkMemory(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// putLocked takes a descriptor. The caller closes the returned ones.
func (k *keeper) putLocked(name string, f *os.File) (freed []*os.File, err error) {
	if len(k.held) >= k.most && k.held[name] == nil {
		return []*os.File{f}, fmt.Errorf("the keeper holds %d descriptors, the limit of open files allows no more", len(k.held))
	}
	status.Reach("keeper received")
	freed = k.dropLocked(name, nil) // an owner that connects again stores the same descriptor again
	k.held[name] = f
	status.Reach("keeper held")
	return freed, nil
}

// dropLocked appends the descriptor of a name to freed, which the caller closes. The memory is freed if it was the last
// reference.
func (k *keeper) dropLocked(name string, freed []*os.File) []*os.File {
	if f := k.held[name]; f != nil {
		delete(k.held, name)
		freed = append(freed, f)
	}
	return freed
}

// getLocked returns duplicates of the descriptors of those names that are held.
func (k *keeper) getLocked(names []string) (found []string, files []*os.File, err error) {
	for _, name := range names[:min(len(names), perGet)] {
		if k.held[name] == nil {
			continue
		}
		f, err := duplicate(k.held[name])
		if err != nil {
			closeAll(files)
			return nil, nil, err
		}
		found, files = append(found, name), append(files, f)
	}
	return found, files, nil
}

// close ends the connections and closes the descriptors. It abandons a connection whose descriptor takes longer than answerTime to close.
func (k *keeper) close() {
	k.stop()
	ended := make(chan struct{})
	go func() {
		k.connections.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(answerTime):
		k.log.Warn("a connection does not end")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer.Stop()
	closeAll(slices.Collect(maps.Values(k.held)))
}
