// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// simulator is a running pvesim with its default cluster.
type simulator struct {
	url, ca string
}

// rootUser and rootPassword are the login of the default cluster.
const (
	rootUser     = "root@pam"
	rootPassword = "pvesim"
)

var announcedURL = regexp.MustCompile(`^API: +(https://\S+) `)

// start runs pvesim as a version of Proxmox VE until the test ends. It skips the test without
// the binary.
func start(t *testing.T, version string) simulator {
	t.Helper()
	binary := os.Getenv("PVESIM")
	if binary == "" {
		t.Skip("SKIPPED: PVESIM must name the simulator's binary; make clients builds it and sets it")
	}
	s := simulator{ca: filepath.Join(t.TempDir(), "ca.pem")}
	cmd := exec.CommandContext(t.Context(), binary, "--listen", "127.0.0.1:0", "--admin-listen", "", "--ca-out", s.ca,
		"--pve-version", version, "--speed", "20", "--boot-time", "0s")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // it was killed with the context
	// The announcement ends with the tokens, so the certificate is written when the URL is read.
	lines := bufio.NewScanner(stdout)
	for s.url == "" && lines.Scan() {
		if found := announcedURL.FindStringSubmatch(lines.Text()); found != nil {
			s.url = found[1]
		}
	}
	if s.url == "" {
		t.Fatal("pvesim did not announce its URL")
	}
	return s
}

// environ returns the environment of a child process with additional variables. The
// simulator's certificate is trusted.
func (s simulator) environ(variables ...string) []string {
	return append(append(os.Environ(), "SSL_CERT_FILE="+s.ca), variables...)
}

// build compiles a package of a module and returns the path of the binary.
func build(t *testing.T, dir string, args ...string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "client")
	cmd := exec.CommandContext(t.Context(), "go", append([]string{args[0], "-o", binary}, args[1:]...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return binary
}
