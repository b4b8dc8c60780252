// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Command guest-test is the container of test pods in a guest: it answers HTTP requests, or sends them until one is answered.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const usage = `usage:
  guest-test serve ADDRESS       answer every HTTP request with the host name
  guest-test get URL [TIMEOUT]   send requests until one succeeds, print the answer; the default timeout is 5m
  guest-test cat FILE            print a file of the container, such as /etc/resolv.conf`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 2 && args[0] == "get":
		return get(args[1], 5*time.Minute)
	case len(args) == 3 && args[0] == "get":
		timeout, err := time.ParseDuration(args[2])
		if err != nil {
			return fmt.Errorf("TIMEOUT: found %q, want a duration such as 90s", args[2])
		}
		return get(args[1], timeout)
	case len(args) == 2 && args[0] == "cat":
		content, err := os.ReadFile(args[1])
		fmt.Print(string(content))
		return err
	}
	return errors.New(usage)
}

// serve answers with the host name.
func serve(address string) error {
	name, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("reading the host name: %w", err)
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	fmt.Println("serving on", address)
	return http.ListenAndServe(address, nil)
}

// get sends requests to a URL until one succeeds, and prints the answer.
func get(url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for {
		body, err := request(ctx, url)
		if err == nil {
			fmt.Print(body)
			return nil
		}
		fmt.Fprintln(os.Stderr, err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("no answer from %s within %s: %w", url, timeout, err)
		case <-time.After(2 * time.Second):
		}
	}
}

func request(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, response.Status)
	}
	return string(body), err
}
