package main

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// The OpenAPI document that a gateway serves has its HTTP routes and no others.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	gw := remotetest.StartGateway(t, "off")
	response, text := gw.Get(t, "/openapi.yaml")
	require.Equal(t, http.StatusOK, response.StatusCode)
	var doc struct {
		Paths map[string]map[string]any `yaml:"paths"`
	}
	require.NoError(t, yaml.Unmarshal(text, &doc))
	var described, routes []string
	for path, operations := range doc.Paths {
		for method := range operations {
			if method != "parameters" {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	wildcard := regexp.MustCompile(`\{(\w+)\.\.\.\}`)
	for _, route := range gw.Routes {
		route = wildcard.ReplaceAllString(strings.ReplaceAll(route, "{$}", ""), "{$1}")
		switch {
		case strings.HasPrefix(route, "grpc "), route == "/v2/": // every other path of the protocol is answered with 404
		case route == "/jsonrpc":
			routes = append(routes, "POST /jsonrpc")
		default:
			routes = append(routes, route)
		}
	}
	slices.Sort(described)
	slices.Sort(routes)
	require.Equal(t, routes, described)
}
