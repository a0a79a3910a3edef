package hub

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strings"
)

// CacheDir returns the folder of the cache as the hub's tools locate it: $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE,
// $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub, or .cache/huggingface/hub in the user's home. A ~ at the beginning and
// variables are replaced. An empty variable counts as missing. The folder need not exist.
func CacheDir() (string, error) {
	for _, name := range [...]string{"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"} {
		if dir := os.Getenv(name); dir != "" {
			return expand(dir), nil
		}
	}
	dir, err := HomeDir()
	if err != nil {
		return "", err
	}
	return expand(filepath.Join(dir, "hub")), nil
}

// HomeDir returns the folder of the hub's tools, which contains the cache and the user's token: $HF_HOME,
// $XDG_CACHE_HOME/huggingface, or .cache/huggingface in the user's home. A ~ at the beginning and variables are replaced.
func HomeDir() (string, error) {
	if dir := os.Getenv("HF_HOME"); dir != "" {
		return expand(dir), nil
	}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		return expand(filepath.Join(dir, "huggingface")), nil
	}
	home, err := home()
	if err != nil {
		return "", fmt.Errorf("the Hugging Face cache: %w; set HF_HOME", err)
	}
	return filepath.Join(home, ".cache", "huggingface"), nil
}

// home returns the user's home: $HOME, or that of the password file.
func home() (string, error) {
	dir, err := os.UserHomeDir()
	if err == nil {
		return dir, nil
	}
	if u, unknown := user.Current(); unknown == nil && u.HomeDir != "" {
		return u.HomeDir, nil
	}
	return "", err
}

var variable = regexp.MustCompile(`\$(?:[A-Za-z0-9_]+|\{[^}]*\})`)

// expand replaces ~, ~USER, $NAME and ${NAME} as os.path.expanduser and os.path.expandvars of Python do: unknown users and
// variables stay.
func expand(path string) string {
	if rest, found := strings.CutPrefix(path, "~"); found {
		name, rest, _ := strings.Cut(rest, "/")
		dir := ""
		if name == "" {
			dir, _ = home()
		} else if u, err := user.Lookup(name); err == nil {
			dir = u.HomeDir
		}
		if dir != "" {
			if path = strings.TrimRight(dir, "/"); rest != "" || path == "" {
				path += "/" + rest
			}
		}
	}
	return variable.ReplaceAllStringFunc(path, func(text string) string {
		if value, found := os.LookupEnv(strings.Trim(text, "${}")); found {
			return value
		}
		return text
	})
}
