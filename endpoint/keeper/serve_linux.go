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
	socket, err := transport.Listen(c.Socket, false)
	if err != nil {
		if errors.Is(err, status.ErrInUse) {
			err = fmt.Errorf("%w: a keeper serves on %s", status.ErrInUse, c.Socket)
		}
		return err
	}
	k := &keeper{log: c.Logger, idle: c.Idle, held: map[string]*os.File{}, most: transport.MaxOpenFiles() - 64}
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

	mu        sync.Mutex
	connected int
	held      map[string]*os.File
}

// serve answers the requests of one connection.
func (k *keeper) serve(ctx context.Context, socket *net.UnixConn) {
	conn, err := wire.NewConn(socket, limits)
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
	k.count(1)
	defer k.count(-1)
	for {
		frame, err := conn.Receive()
		if err == nil {
			err = k.answer(conn, frame)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
				k.log.Warn("connection ended", "pid", conn.Peer().PID, "error", err)
			}
			return
		}
	}
}

// count counts connections, and starts or stops the timer of an idle keeper.
func (k *keeper) count(more int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.connected += more
	if k.connected == 0 && len(k.held) == 0 {
		k.timer.Reset(k.idle)
	} else {
		k.timer.Stop()
	}
}

// answer answers one request.
func (k *keeper) answer(conn *wire.Conn, frame wire.Frame) error {
	defer frame.Files.Close()
	var in request
	if err := decode(frame, &in); err != nil {
		return err
	}
	out := response{PID: os.Getpid()}
	var files []*os.File
	err := fmt.Errorf("protocol %d: this keeper has protocol %d", in.Protocol, protocol)
	if in.Protocol == protocol {
		out.Names, files, err = k.perform(in, frame)
	}
	if err != nil {
		k.log.Warn("request refused", "pid", conn.Peer().PID, "error", err)
		out.Error = message.CutText(err.Error(), message.MaxErrorMessage)
	}
	defer closeAll(files)
	body, err := message.Marshal(out)
	if err != nil {
		return err
	}
	return conn.Send(wire.KindResponse, frame.ID, body, files...)
}

// perform performs a request. The caller owns the files.
func (k *keeper) perform(in request, frame wire.Frame) (names []string, files []*os.File, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
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
	if info, err := f.Stat(); err != nil || info.Mode()&(os.ModeSocket|os.ModeNamedPipe|os.ModeDir) != 0 {
		f.Close()
		return errors.New("the descriptor is not memory")
	}
	k.dropLocked(names[0]) // an owner that connects again stores the same descriptor again
	k.held[names[0]] = f
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
