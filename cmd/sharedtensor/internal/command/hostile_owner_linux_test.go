package command

import (
	"fmt"
	"math"
	"net"
	"os"
	"reflect"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Environment variables that make this test binary a hostile owner: its socket and its mood.
const (
	hostileSocketEnv = "SHAREDTENSOR_TEST_HOSTILE_SOCKET"
	hostileMoodEnv   = "SHAREDTENSOR_TEST_HOSTILE_MOOD"
)

// hostileText must not reach a terminal. It sets the window title, clears the screen, sets a colour with a C1 control
// character, changes the text direction, and contains a backspace, line breaks and a tab.
const hostileText = "evil\x1b]0;owned\x07\x1b[2J\r\n\u009b31m\u202e\u200b\x7f\b\t\x00\u2028é"

// Moods of a hostile owner.
const (
	hostileAnswers = "answers"  // every text in an answer is hostile, every number extreme
	hostileLow     = "low"      // the same with minimum numbers
	hostileErrors  = "errors"   // every request fails with hostile text
	hostileDetails = "details"  // the same with details, such as those of a task or an object
	hostileRefuses = "refuses"  // it refuses the connection
	hostileGoodbye = "goodbyes" // it sends a goodbye after the first request
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
	check := func(*message.Hello) error {
		if h.mood == hostileRefuses {
			return fmt.Errorf("go away %s", hostileText)
		}
		return nil
	}
	hello := message.Hello{Server: hostileText, Version: hostileText, Label: hostileText}
	if _, err := message.ServerHandshake(h.conn, hello, check); err != nil {
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
		request, err := message.ParseRequest(frame.Body)
		if err != nil {
			return err
		}
		if err := h.answer(frame.ID, request); err != nil {
			return fmt.Errorf("%v: %w", request.Op, err)
		}
	}
}

// answer answers one request.
func (h *hostileSession) answer(id uint64, request message.Request) error {
	switch h.mood {
	case hostileGoodbye:
		return h.say(wire.KindGoodbye, 0, message.Goodbye{Code: message.CodeInternal, Reason: hostileText})
	case hostileErrors:
		return h.say(wire.KindError, id, message.Error{Code: message.CodeInternal, Message: hostileText, Type: hostileText})
	case hostileDetails:
		return h.say(wire.KindError, id, h.detailed())
	}
	var events []any // sent after the answer
	body := hostileResponse(request.Op)
	if body == nil {
		return h.say(wire.KindResponse, id, struct{}{})
	}
	h.fill(reflect.ValueOf(body).Elem(), 0)
	switch body := body.(type) {
	case *message.Listed:
		body.Models[0].Name, body.Loading[1].State = "m", message.LoadFailed
	case *message.InfoResult:
		body.Manifest = h.manifest()
	case *message.Returned:
		body.Handles, body.Object = nil, nil
		body.Value = h.value()
	case *message.EndpointsListed:
		body.Endpoints[0].Name, body.Endpoints[0].Stream, body.Endpoints[0].Task = "f", false, false
	case *message.TaskInfo:
		body.State = "failed"
	case *message.TasksListed:
		body.Tasks[0].State = "running"
	case *message.ObjectsListed:
		body.Next = 0
	case *message.Watching:
		e := &message.Event{}
		h.fill(reflect.ValueOf(e).Elem(), 0)
		e.Kind = message.EventPublished
		events = append(events, e)
	case *message.WatchingTasks:
		for _, state := range []string{"running", "pending", hostileText} {
			e := &message.TaskEvent{}
			h.fill(reflect.ValueOf(e).Elem(), 0)
			e.Kind, e.Task.State, e.Task.ID = message.TaskListed, state, state+hostileText
			events = append(events, e)
		}
	}
	if err := h.say(wire.KindResponse, id, body); err != nil {
		return err
	}
	for _, e := range events {
		if err := h.say(wire.KindEvent, id, e); err != nil {
			return err
		}
	}
	return nil
}

// hostileResponse returns an empty response for an operation, or nil if its response has no fields.
func hostileResponse(op message.Op) any {
	switch op {
	case message.OpPing:
		return &message.Pong{}
	case message.OpList:
		return &message.Listed{}
	case message.OpInfo:
		return &message.InfoResult{}
	case message.OpAcquire:
		return &message.Acquired{}
	case message.OpPublish:
		return &message.Published{}
	case message.OpWatch:
		return &message.Watching{}
	case message.OpEndpoints:
		return &message.EndpointsListed{}
	case message.OpServerInfo:
		return &message.ServerInfo{}
	case message.OpCall, message.OpTaskResult:
		return &message.Returned{}
	case message.OpSubmit, message.OpTask, message.OpTaskWait:
		return &message.TaskInfo{}
	case message.OpTasks:
		return &message.TasksListed{}
	case message.OpTaskWatch:
		return &message.WatchingTasks{}
	case message.OpTaskCancel:
		return &message.TaskCancelled{}
	case message.OpObjects:
		return &message.ObjectsListed{}
	case message.OpObjectDestroy, message.OpObjectInfo:
		return &message.ObjectInfo{}
	case message.OpInvalidateCall, message.OpInvalidateEndpoint:
		return &message.Invalidated{}
	}
	return nil
}

// fill sets every field of a message to a hostile value.
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
		if v.Type() == reflect.TypeFor[message.RawMessage]() || depth > 5 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			h.fill(v.Index(i), depth+1)
		}
	case reflect.Pointer:
		if depth > 5 || v.Type() == reflect.TypeFor[*message.Manifest]() {
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		h.fill(v.Elem(), depth+1)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[message.Manifest]() {
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

// manifest returns a valid manifest of tensors that cannot be read in full: float4 with 2^62 elements, all at the same
// address.
func (h *hostileSession) manifest() *message.Manifest {
	m, err := message.NewManifest([]message.Tensor{
		{Name: hostileText, DType: 23, Shape: []int64{1 << 61, 2}, Strides: []int64{0, 0}},
		{Name: hostileText + "2", DType: 12, Shape: []int64{2}},
	}, []message.Storage{{Bytes: 4096, Type: 1}}, map[string]string{hostileText: hostileText})
	if err != nil {
		panic(err)
	}
	return m
}

// value returns the result of a call.
func (h *hostileSession) value() message.RawMessage {
	v, err := message.MarshalPayload(map[string]any{hostileText: []any{hostileText, map[string]any{hostileText: hostileText}}, "b": []byte(hostileText)})
	if err != nil {
		panic(err)
	}
	return v
}

// detailed returns an error with all details set.
func (h *hostileSession) detailed() message.Error {
	cause := &message.Error{Code: message.CodeTask, Message: hostileText, Type: hostileText}
	data, err := message.Marshal(message.ErrorDetails{
		Classes: []message.ErrorClass{{Code: message.CodeNotFound, Type: hostileText}}, Cause: cause, Object: hostileText, Server: hostileText,
		Reason: "object_missing", Detail: hostileText,
	})
	if err != nil {
		panic(err)
	}
	return message.Error{Code: message.CodeStaleHandle, Message: hostileText, Type: hostileText, Data: data}
}

func (h *hostileSession) say(kind wire.Kind, id uint64, body any) error {
	encoded, err := message.MarshalPayload(body)
	if err != nil {
		return err
	}
	return h.conn.Send(kind, id, encoded)
}

// children are the roles of this program in other tests. One that is not requested by the environment returns nil.
var children []func() error

// actAsChild runs the role that a test has selected for this process, if any.
func actAsChild() {
	for _, child := range children {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	if socket := os.Getenv(hostileSocketEnv); socket != "" {
		fmt.Fprintln(os.Stderr, runHostileOwner(socket, os.Getenv(hostileMoodEnv)))
		os.Exit(1)
	}
}
