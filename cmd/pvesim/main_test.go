// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is a writer that can be read concurrently.
type output struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func TestVersion(t *testing.T) {
	t.Parallel()
	out := &output{}
	if err := run(t.Context(), []string{"--version"}, out); err != nil {
		t.Fatal(err)
	}
	if want := "pvesim dev (" + runtime.Version() + ")\n"; out.String() != want {
		t.Errorf("found %q, want %q", out, want)
	}
}

func TestFlagsInvalid(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(broken, []byte("version: \"8.4\"\nhosts:\n- {name: a, sockets: 1, cores: many}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--hosts", "0"}, "--hosts 0 is not between 1 and 200"},
		{[]string{"--pve-version", "7.4"}, `--pve-version "7.4" is neither 8.4 nor 9.2`},
		{[]string{"--speed", "-1"}, "--speed -1 is negative"},
		{[]string{"--guests", "windows"}, `--guests "windows" is not one of`},
		{[]string{"--guest-image", "debian.qcow2"}, "need --guests qemu, not cloud-init"},
		{[]string{"--guests", "qemu", "--guest-image", "/no/such/image"}, "--guest-image: stat /no/such/image"},
		{[]string{"--guests", "qemu", "--guest-network", "tap"}, `--guest-network "tap" is not one of shared, user`},
		{[]string{"--nosuch"}, "flag provided but not defined: -nosuch"},
		{[]string{"scenario.yaml"}, `"scenario.yaml" is not a flag`},
		{[]string{"--scenario", broken}, "line 3: cannot unmarshal"},
		{[]string{"--scenario", "/no/such/file"}, "opening scenario"},
		{[]string{"--listen", "nowhere:x"}, "starting simulator"},
	} {
		err := run(context.Background(), tc.args, &output{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: got %v, want error containing %q", tc.args, err, tc.want)
		}
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	ca := filepath.Join(t.TempDir(), "ca.pem")
	out, done := &output{}, make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--hosts", "2", "--pve-version", "9.2", "--ca-out", ca}, out)
	}()
	deadline := time.Now().Add(2 * time.Minute)
	for !strings.Contains(out.String(), "Admin:") && time.Now().Before(deadline) {
		time.Sleep(5 * time.Millisecond)
	}
	for _, want := range []string{"API:   https://127.0.0.1:", "Proxmox VE 9.2, 2 hosts", "Token: kubernetes@pve!karpenter=", "CA:    " + ca, "Admin: http://"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output does not contain %q:\n%s", want, out)
		}
	}
	if pem, err := os.ReadFile(ca); err != nil || !strings.HasPrefix(string(pem), "-----BEGIN CERTIFICATE-----") {
		t.Errorf("reading CA file: %v", err)
	}
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * time.Minute):
		t.Error("run did not return after its context was canceled")
	}
}
