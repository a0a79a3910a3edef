package jsonrpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
)

// endpointCache keeps what the endpoints of an owner take, so that a call asks for it once and not each time. It is
// asked anew for a name that is not in it and of another owner: endpoints are never taken away from one.
type endpointCache struct {
	mu     sync.Mutex
	server string
	byName map[string]endpoint.EndpointInfo
}

// find describes an endpoint and says where it is called.
func (e *endpointCache) find(ctx context.Context, owner gateway.Owner, name string) (endpoint.Caller, endpoint.EndpointInfo, error) {
	caller, err := owner.Caller(name)
	if err != nil {
		return nil, endpoint.EndpointInfo{}, err
	}
	server := owner.ServerID()
	e.mu.Lock()
	info, known := e.byName[name]
	current := e.server == server && server != ""
	e.mu.Unlock()
	if known && current {
		return caller, info, nil
	}
	list, err := listEndpoints(ctx, owner)
	if err != nil {
		return nil, endpoint.EndpointInfo{}, err
	}
	byName := make(map[string]endpoint.EndpointInfo, len(list))
	for _, one := range list {
		if _, taken := byName[one.Name]; !taken { // the embedding program's go first
			byName[one.Name] = one
		}
	}
	e.mu.Lock()
	e.server, e.byName = server, byName
	e.mu.Unlock()
	if info, known = byName[name]; !known {
		return nil, info, unknownFunction(name, byName)
	}
	return caller, info, nil
}

// listEndpoints is what can be called, the embedding program's first.
func listEndpoints(ctx context.Context, owner gateway.Owner) ([]endpoint.EndpointInfo, error) {
	callers := owner.Callers()
	if len(callers) == 0 {
		_, err := owner.Client()
		return nil, err
	}
	var all []endpoint.EndpointInfo
	for _, c := range callers {
		bound, unbind := owner.Bind(ctx)
		list, err := c.Endpoints(bound)
		unbind()
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// unknownFunction says which functions there are. Seeds took import paths; those are refused with a word of their own.
func unknownFunction(name string, there map[string]endpoint.EndpointInfo) error {
	if strings.ContainsAny(name, ":/") {
		return &callError{fmt.Errorf("%q: %w: names of functions are taken, import paths are not", name, endpoint.ErrNoEndpoint), notRun}
	}
	names := make([]string, 0, len(there))
	for n := range there {
		names = append(names, n)
	}
	slices.Sort(names)
	const shown = 20
	list := strings.Join(names[:min(len(names), shown)], ", ")
	if len(names) > shown {
		list += fmt.Sprintf(" and %d more: see list_functions", len(names)-shown)
	}
	if list == "" {
		list = "none"
	}
	return &callError{fmt.Errorf("%q: %w; there is %s", name, endpoint.ErrNoEndpoint, list), notRun}
}
