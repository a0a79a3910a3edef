package jsonrpc

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/access"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/gateway"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/rights"
)

// findFunction returns a function of the gateway's cache.
func findFunction(ctx context.Context, owner gateway.Owner, name string) (*gateway.Function, error) {
	f, functions, err := gateway.FindFunction(ctx, owner, name)
	if err == nil && f == nil {
		err = unknownFunction(ctx, name, functions)
	}
	return f, err
}

// changedFunction lists the functions and returns that of the same name if it differs from known.
func changedFunction(ctx context.Context, owner gateway.Owner, known endpoint.EndpointInfo) (*gateway.Function, bool) {
	functions, err := owner.ListFunctions(ctx)
	if err != nil {
		return nil, false
	}
	f := functions.Find(known.Name)
	return f, f != nil && !reflect.DeepEqual(f.EndpointInfo, known)
}

// unknownFunction returns an error that lists the available functions. Import paths, which shared-tensor 0.1 accepted,
// get a specific error.
func unknownFunction(ctx context.Context, name string, there *gateway.Functions) error {
	if strings.ContainsAny(name, ":/") {
		return &callError{fmt.Errorf("%q: %w: use names of functions, import paths are not supported", name, endpoint.ErrNoEndpoint), notRun}
	}
	names := make([]string, 0, len(there.List))
	for _, f := range there.List {
		if rights.Sender(ctx).May(access.Call, f.Name) {
			names = append(names, f.Name)
		}
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
