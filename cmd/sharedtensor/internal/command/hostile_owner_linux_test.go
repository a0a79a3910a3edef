package command

import (
	"fmt"
	"math"
	"net"
	"os"
	"reflect"

	"github.com/sharedtensor/sharedtensor/wire"
)

// The environment that makes this test binary a hostile owner: where it listens, and what it does.
const (
	hostileSocketEnv = "SHAREDTENSOR_TEST_HOSTILE_SOCKET"
	hostileMoodEnv   = "SHAREDTENSOR_TEST_HOSTILE_MOOD"
)

// hostileText is what no terminal may get: the title of the window, a cleared screen, a colour by one character of the upper control
// range, a change of direction, a backspace, lines and a tab.
const hostileText = "evil\x1b]0;owned\x07\x1b[2J\r\n\u009b31m\u202e\u200b\x7f\b\t\x00\u2028é"

// The moods of a hostile owner.
const (
	hostileAnswers = "answers"  // every text of an answer is hostile, every number extreme
	hostileLow     = "low"      // the same with the least numbers
	hostileErrors  = "errors"   // every request fails with hostile words
	hostileDetails = "details"  // the same with details, as those of a task or an object
	hostileRefuses = "refuses"  // it refuses the connection
	hostileGoodbye = "goodbyes" // it says goodbye to the first request
)

var hostileMoods = []string{hostileAnswers, hostileLow, hostileErrors, hostileDetails, hostileRefuses, hostileGoodbye}

// runHostileOwner serves until the process is killed.
func runHostileOwner(socket, mood string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	for {
		raw, err := l.AcceptUnix()
		if err != nil {
			return err
		}
		conn, err := wire.NewConn(raw, wire.Limits{})
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			h := &hostileSession{conn: conn, mood: mood}
			if err := h.serve(); err != nil {
				fmt.Fprintln(os.Stderr, "hostile owner:", err)
			}
		}()
	}
}

// hostileSession is one connection.
type hostileSession struct {
	conn *wire.Conn
	mood string
}

func (h *hostileSession) serve() error {
	check := func(*wire.Hello) error {
		if h.mood == hostileRefuses {
			return fmt.Errorf("go away %s", hostileText)
		}
		return nil
	}
	hello := wire.Hello{Server: hostileText, Version: hostileText, Label: hostileText}
	if _, err := wire.ServerHandshake(h.conn, hello, check); err != nil {
		return err
	}
	for {
		frame, err := h.conn.Receive()
		if err != nil {
			return err
		}
		frame.Files.Close()
		if frame.Kind != wire.KindRequest {
			continue
		}
		request, err := wire.ParseRequest(frame.Body)
		if err != nil {
			return err
		}
		if err := h.answer(frame.ID, request); err != nil {
			return fmt.Errorf("%v: %w", request.Op, err)
		}
	}
}

// answer answers one request.
func (h *hostileSession) answer(id uint64, request wire.Request) error {
	switch h.mood {
	case hostileGoodbye:
		return h.say(wire.KindGoodbye, 0, wire.Goodbye{Code: wire.CodeInternal, Reason: hostileText})
	case hostileErrors:
		return h.say(wire.KindError, id, wire.Error{Code: wire.CodeInternal, Message: hostileText, Type: hostileText})
	case hostileDetails:
		return h.say(wire.KindError, id, h.detailed())
	}
	var before, after any // events, before and after the answer
	body := hostileResponse(request.Op)
	if body == nil {
		return h.say(wire.KindResponse, id, struct{}{})
	}
	h.fill(reflect.ValueOf(body).Elem(), 0)
	switch body := body.(type) {
	case *wire.Listed:
		body.Models[0].Name, body.Loading[1].State = "m", wire.LoadFailed
	case *wire.InfoResult:
		body.Manifest = h.manifest()
	case *wire.Returned:
		body.Handles, body.Object = nil, nil
		body.Value = h.value()
	case *wire.EndpointsListed:
		body.Endpoints[0].Name, body.Endpoints[0].Stream, body.Endpoints[0].Task = "f", false, false
	case *wire.TaskInfo:
		body.State = "failed"
	case *wire.TasksListed:
		body.Tasks[0].State = "running"
	case *wire.ObjectsListed:
		body.Next = 0
	case *wire.Watching:
		e := &wire.Event{}
		h.fill(reflect.ValueOf(e).Elem(), 0)
		e.Kind = wire.EventPublished
		after = e
	case *wire.WatchingTasks:
		e := &wire.TaskEvent{}
		h.fill(reflect.ValueOf(e).Elem(), 0)
		e.Kind = wire.TaskListed
		after = e
	}
	if before != nil {
		if err := h.say(wire.KindEvent, id, before); err != nil {
			return err
		}
	}
	if err := h.say(wire.KindResponse, id, body); err != nil || after == nil {
		return err
	}
	return h.say(wire.KindEvent, id, after)
}

// hostileResponse is an empty answer to an operation; nil for one whose answer has nothing in it.
func hostileResponse(op wire.Op) any {
	switch op {
	case wire.OpPing:
		return &wire.Pong{}
	case wire.OpList:
		return &wire.Listed{}
	case wire.OpInfo:
		return &wire.InfoResult{}
	case wire.OpAcquire:
		return &wire.Acquired{}
	case wire.OpPublish:
		return &wire.Published{}
	case wire.OpWatch:
		return &wire.Watching{}
	case wire.OpEndpoints:
		return &wire.EndpointsListed{}
	case wire.OpServerInfo:
		return &wire.ServerInfo{}
	case wire.OpCall, wire.OpTaskResult:
		return &wire.Returned{}
	case wire.OpSubmit, wire.OpTask, wire.OpTaskWait:
		return &wire.TaskInfo{}
	case wire.OpTasks:
		return &wire.TasksListed{}
	case wire.OpTaskWatch:
		return &wire.WatchingTasks{}
	case wire.OpTaskCancel:
		return &wire.TaskCancelled{}
	case wire.OpObjects:
		return &wire.ObjectsListed{}
	case wire.OpObjectDestroy, wire.OpObjectInfo:
		return &wire.ObjectInfo{}
	case wire.OpInvalidateCall, wire.OpInvalidateEndpoint:
		return &wire.Invalidated{}
	}
	return nil
}

// fill gives every field of a message a hostile value.
func (h *hostileSession) fill(v reflect.Value, depth int) {
	low := h.mood == hostileLow
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostileText)
	case reflect.Bool:
		v.SetBool(!low)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n := int64(math.MaxInt64)
		if low {
			n = math.MinInt64
		}
		v.SetInt(n >> (64 - v.Type().Bits()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		if !low {
			v.SetUint(math.MaxUint64 >> (64 - v.Type().Bits()))
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[wire.RawMessage]() || depth > 5 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			h.fill(v.Index(i), depth+1)
		}
	case reflect.Pointer:
		if depth > 5 || v.Type() == reflect.TypeFor[*wire.Manifest]() {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		h.fill(v.Elem(), depth+1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[wire.Manifest]() {
			v.Set(reflect.ValueOf(*h.manifest()))
			return
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				h.fill(v.Field(i), depth+1)
			}
		}
	}
}

// manifest is one that can be read, of tensors that could not be: float4 of 2^62 elements that are all the same one (D13).
func (h *hostileSession) manifest() *wire.Manifest {
	m, err := wire.NewManifest([]wire.Tensor{
		{Name: hostileText, DType: 23, Shape: []int64{1 << 61, 2}, Strides: []int64{0, 0}},
		{Name: hostileText + "2", DType: 12, Shape: []int64{2}},
	}, []wire.Storage{{Bytes: 4096, Type: 1}}, map[string]string{hostileText: hostileText})
	if err != nil {
		panic(err)
	}
	return m
}

// value is a result of a call.
func (h *hostileSession) value() wire.RawMessage {
	v, err := wire.MarshalPayload(map[string]any{hostileText: []any{hostileText, map[string]any{hostileText: hostileText}}, "b": []byte(hostileText)})
	if err != nil {
		panic(err)
	}
	return v
}

// detailed is an error with all that can be said of one.
func (h *hostileSession) detailed() wire.Error {
	cause := &wire.Error{Code: wire.CodeTask, Message: hostileText, Type: hostileText}
	data, err := wire.Marshal(wire.ErrorDetails{
		Classes: []wire.ErrorClass{{Code: wire.CodeNotFound, Type: hostileText}}, Cause: cause, Object: hostileText, Server: hostileText,
		Reason: "object_missing", Detail: hostileText,
	})
	if err != nil {
		panic(err)
	}
	return wire.Error{Code: wire.CodeStaleHandle, Message: hostileText, Type: hostileText, Data: data}
}

func (h *hostileSession) say(kind wire.Kind, id uint64, body any) error {
	encoded, err := wire.MarshalPayload(body)
	if err != nil {
		return err
	}
	return h.conn.Send(kind, id, encoded)
}
