package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/term"
	"github.com/sharedtensor/sharedtensor/endpoint"
)

// holding is the JSON form of a session that holds a version of a model or a managed object.
type holding struct {
	// Name is the model, or the endpoint that created the object.
	Name string `json:"name"`
	// Version is set for a model, Object (its id) for an object.
	Version uint64 `json:"version,omitempty"`
	Object  string `json:"object,omitempty"`
	// State is "object" for an object, and "offered" for an endpoint that the session offers.
	State string `json:"state"`
	Bytes int64  `json:"bytes"`
	// For an object, Leases counts references.
	endpoint.Holder
}

func newHoldersCommand() *cobra.Command {
	var o *cli.OwnerFlags
	var asJSON *bool
	c := &cobra.Command{
		Use:   "holders [flags] [NAME|ENDPOINT|ID...]",
		Short: "List the processes that keep models and objects in use",
		Long: `List the sessions that hold a version of a model or a managed object, with what they hold and since when. A session is one
connection of a process. The owner frees memory when its last holder has released it. A process that still maps memory which it has
released is not listed: grep -l sharedtensor /proc/[0-9]*/maps finds it on the host. The arguments select models by name, objects
by endpoint, and objects by id or unambiguous prefix of an id. Without arguments all holders are listed. Endpoints that
other processes offer are listed with these processes in the state "offered".`,
		Example: "  sharedtensor holders\n  sharedtensor holders llm --json\n  sharedtensor holders build_model\n  sharedtensor holders 5d41402a",
		RunE: func(c *cobra.Command, words []string) error {
			return o.WithOwner(c.Context(), func(ctx context.Context, client *endpoint.Client) error {
				list, err := askHoldings(ctx, o, client, words)
				if err != nil {
					return err
				}
				if *asJSON {
					return term.PrintJSON(c.OutOrStdout(), list)
				}
				if len(list) == 0 {
					fmt.Fprintf(c.ErrOrStderr(), "there are no holders on %s\n", client.Socket())
					return nil
				}
				return holdingTable(list, time.Now()).Print(c.OutOrStdout())
			})
		},
	}
	o = cli.AddOwnerFlags(c)
	asJSON = cli.JSONFlag(c)
	c.ValidArgsFunction = completeObjects(o, cli.CompleteNames(o, 0), completeEndpoints(o, 0))
	return c
}

// askHoldings returns the holders of what words select, or all holders if there are no words.
func askHoldings(ctx context.Context, o *cli.OwnerFlags, client *endpoint.Client, words []string) ([]holding, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	models, err := client.List(ctx)
	if err != nil {
		return nil, err
	}
	endpoints, err := client.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	objects, err := client.Objects(ctx)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) { // an older owner does not list objects
		return nil, err
	}
	if len(words) > 0 {
		if models, objects, err = meant(client, words, models, objects, endpoints); err != nil {
			return nil, err
		}
		endpoints = slices.DeleteFunc(endpoints, func(e endpoint.EndpointInfo) bool { return !slices.Contains(words, e.Name) })
	}
	return append(append(holdings(models), objectHoldings(objects)...), offerHoldings(endpoints)...), nil
}

// offerHoldings returns the workers of offered endpoints.
func offerHoldings(endpoints []endpoint.EndpointInfo) (list []holding) {
	for _, e := range endpoints {
		for _, w := range e.Workers {
			list = append(list, holding{Name: e.Name, State: "offered", Holder: endpoint.Holder{Process: w.Process, Session: w.Session, Since: w.Since}})
		}
	}
	return list
}

// meant selects the models, objects and endpoints that match the words. It fails for a word without a match.
func meant(client *endpoint.Client, words []string,
	models []endpoint.ModelInfo, objects []endpoint.ObjectInfo, endpoints []endpoint.EndpointInfo) ([]endpoint.ModelInfo, []endpoint.ObjectInfo, error) {
	ids := map[string]bool{}
	for _, word := range words {
		known := slices.ContainsFunc(models, func(m endpoint.ModelInfo) bool { return m.Name == word }) ||
			slices.ContainsFunc(endpoints, func(e endpoint.EndpointInfo) bool { return e.Name == word })
		if known {
			continue
		}
		object, err := findObject(objects, word)
		if err != nil {
			return nil, nil, err
		}
		if object == nil {
			return nil, nil, fmt.Errorf("%q: %w on %s: no model, endpoint or object", word, endpoint.ErrNotFound, client.Socket())
		}
		ids[object.ID] = true
	}
	models = slices.DeleteFunc(models, func(m endpoint.ModelInfo) bool { return !slices.Contains(words, m.Name) })
	objects = slices.DeleteFunc(objects, func(i endpoint.ObjectInfo) bool { return !ids[i.ID] && !slices.Contains(words, i.Endpoint) })
	return models, objects, nil
}

// holdings returns the holders of all versions, ordered by name, newest version first.
func holdings(models []endpoint.ModelInfo) []holding {
	list := []holding{}
	for _, m := range models {
		for _, v := range m.Versions {
			for _, h := range v.Holders {
				list = append(list, holding{Name: m.Name, Version: v.Version, State: versionState(m, v), Bytes: v.Bytes, Holder: h})
			}
		}
	}
	return list
}

// objectHoldings returns the holders of the objects.
func objectHoldings(objects []endpoint.ObjectInfo) (list []holding) {
	for _, o := range objects {
		for _, h := range o.Holders {
			list = append(list, holding{
				Name: o.Endpoint, Object: o.ID, State: "object", Bytes: int64(o.Bytes),
				Holder: endpoint.Holder{Process: h.Process, Session: h.Session, Leases: int(h.Refs), Since: h.Since},
			})
		}
	}
	return list
}

func holdingTable(list []holding, now time.Time) *term.Table {
	objects := slices.ContainsFunc(list, func(h holding) bool { return h.Object != "" })
	columns := []term.Column{{Title: "NAME", Give: 1}, {Title: "VERSION", Align: term.Right}, {Title: "STATE"}}
	if objects {
		columns = slices.Insert(columns, 2, term.Column{Title: "OBJECT"})
	}
	t := term.NewTable(append(columns, term.Column{Title: "BYTES", Align: term.Right}, term.Column{Title: "SESSION", Align: term.Right}, term.Column{Title: "PID", Align: term.Right},
		term.Column{Title: "LEASES", Align: term.Right}, term.Column{Title: "SINCE", Align: term.Right}, term.Column{Title: "LABEL", Give: 2})...)
	for _, h := range list {
		cells := []string{h.Name, "-", h.State}
		if n := len(h.Placements); n > 0 {
			cells[2] += ", on " + term.Count(n, "other device")
		}
		if h.Version > 0 {
			cells[1] = strconv.FormatUint(h.Version, 10)
		}
		if objects {
			cells = slices.Insert(cells, 2, shortID(h.Object))
		}
		t.Add(append(cells, term.FormatBytes(h.Bytes), strconv.FormatUint(h.Session, 10), strconv.Itoa(int(h.PID)), strconv.Itoa(h.Leases),
			term.FormatAge(now.Sub(h.Since)), h.Label)...)
	}
	return t
}
