package jsonrpc

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/models"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// rpcMethods returns the methods by name.
func (c *Component) rpcMethods() map[string]handler {
	methods := map[string]handler{
		"ping":             method(c.ping),
		"get_server_info":  method(c.serverInfo),
		"list_functions":   method(c.listFunctions),
		"call_function":    method(c.callFunction),
		"execute_function": method(c.executeFunction),
		"submit_task":      method(c.submitTask),
		"get_task_status":  method(c.taskStatus),
		"get_task_result":  method(c.taskResult),
		"wait_task":        method(c.waitTask),
		"cancel_task":      method(c.cancelTask),
		"list_tasks":       method(c.listTasks),
		"invalidate":       method(c.invalidate),
		"release_result":   method(c.releaseResult),
	}
	if m := c.Models; m != nil {
		methods["list_models"] = method(func(ctx context.Context, _ *none) (models.ModelList, error) { return m.List(ctx) })
		methods["inspect_model"] = method(m.Inspect)
		methods["publish_from"] = method(m.PublishFrom)
		methods["withdraw"] = method(m.Withdraw)
		methods["holders"] = method(m.Holders)
	}
	return methods
}

// Methods returns the names of all methods, sorted.
func Methods() []string {
	c := &Component{Models: &models.Component{}}
	return slices.Sorted(maps.Keys(c.rpcMethods()))
}

// none is the parameter type of methods without parameters.
type none struct{}

// method makes a handler from a function. Parameters are an object, or a list in the order of the fields whose last
// elements may be omitted. Unknown names are refused.
func method[P, R any](fn func(context.Context, *P) (R, error)) handler {
	names := fieldKeys(reflect.TypeFor[P]())
	return func(ctx context.Context, params json.RawMessage) (any, error) {
		p := new(P)
		if err := readParams(params, names, p); err != nil {
			return nil, err
		}
		return fn(ctx, p)
	}
}

// fieldKeys returns the JSON names of a struct's fields.
func fieldKeys(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i], _, _ = strings.Cut(t.Field(i).Tag.Get("json"), ",")
	}
	return names
}

func readParams(text json.RawMessage, names []string, p any) error {
	if len(text) == 0 {
		return nil
	}
	if text[0] == '[' {
		var err error
		if text, err = named(text, names); err != nil {
			return err
		}
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return fmt.Errorf("%w: %w", models.ErrParams, err)
	}
	return nil
}

// named converts a list of parameters to an object.
func named(text []byte, names []string) ([]byte, error) {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("%w: %w", models.ErrParams, err)
	}
	if len(list) > len(names) {
		return nil, fmt.Errorf("%w: at most %d (%s), and %d were given", models.ErrParams, len(names), strings.Join(names, ", "), len(list))
	}
	object := make(map[string]json.RawMessage, len(list))
	for i, v := range list {
		object[names[i]] = v
	}
	return json.Marshal(object)
}

// pong is the result of ping.
type pong struct {
	Pong      bool    `json:"pong"`
	Timestamp float64 `json:"timestamp"`
}

// ping answers without the owner.
func (c *Component) ping(context.Context, *none) (pong, error) {
	return pong{true, float64(time.Now().UnixMicro()) / 1e6}, nil
}

// serverInfo is the result of get_server_info.
type serverInfo struct {
	// Server, Version and ReadOnly describe the gateway.
	Server   string `json:"server"`
	Version  string `json:"version"`
	ReadOnly bool   `json:"read_only"`
	// Attached reports whether there is an owner. Error is the reason if there is none.
	Attached bool   `json:"attached"`
	Error    string `json:"error,omitempty"`
	// Owner is the owner's own information.
	Owner *endpoint.ServerInfo `json:"owner,omitempty"`
}

func (c *Component) serverInfo(ctx context.Context, _ *none) (serverInfo, error) {
	info := serverInfo{Server: "sharedtensor-gateway", Version: c.env.Version, ReadOnly: c.env.ReadOnly}
	if err := c.env.Allow(ctx, access.Info, ""); err != nil {
		return info, err
	}
	client, err := c.env.Owner.Client()
	if err != nil {
		info.Error = err.Error()
		return info, nil
	}
	ctx, unbind := c.env.Owner.Bind(ctx)
	defer unbind()
	owner, err := client.ServerInfo(ctx)
	if err != nil {
		info.Error = err.Error()
		return info, nil
	}
	info.Attached, info.Owner = true, &owner
	return info, nil
}

// functionInfo is one entry of list_functions.
type functionInfo struct {
	endpoint.EndpointInfo
	// Stats counts the calls since the owner started. It is nil if the owner does not report them.
	Stats *endpoint.EndpointStats `json:"stats,omitempty"`
}

// functionList is the result of list_functions.
type functionList struct {
	Functions []functionInfo `json:"functions"`
}

func (c *Component) listFunctions(ctx context.Context, _ *none) (functionList, error) {
	out := functionList{Functions: []functionInfo{}}
	if err := c.env.Allow(ctx, access.Call, ""); err != nil {
		return out, err
	}
	seen := map[string]bool{}
	callers := c.env.Owner.Callers()
	if len(callers) == 0 {
		_, err := c.env.Owner.Client()
		return out, err
	}
	for _, caller := range callers {
		ctx, unbind := c.bind(ctx, caller)
		defer unbind() // at most two iterations
		list, err := caller.Endpoints(ctx)
		if err != nil {
			return out, err
		}
		info, err := caller.ServerInfo(ctx)
		if err != nil {
			return out, err
		}
		stats := make(map[string]*endpoint.EndpointStats, len(info.Endpoints))
		for i := range info.Endpoints {
			stats[info.Endpoints[i].Name] = &info.Endpoints[i]
		}
		for _, e := range list {
			if !seen[e.Name] {
				seen[e.Name] = true
				out.Functions = append(out.Functions, functionInfo{e, stats[e.Name]})
			}
		}
	}
	out.Functions = rights.Filter(rights.Sender(ctx), access.Call, out.Functions, func(f functionInfo) string { return f.Name })
	return out, nil
}
