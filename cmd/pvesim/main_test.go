// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	out := gbytes.NewBuffer()
	NewWithT(t).Expect(run(t.Context(), []string{"--version"}, out)).To(Succeed())
	NewWithT(t).Expect(string(out.Contents())).To(Equal("pvesim dev (" + runtime.Version() + ")\n"))
}

func TestFlagsInvalid(t *testing.T) {
	t.Parallel()
	broken := filepath.Join(t.TempDir(), "broken.yaml")
	NewWithT(t).Expect(os.WriteFile(broken, []byte("version: \"8.4\"\nhosts:\n- {name: a, sockets: 1, cores: many}\n"), 0o600)).To(Succeed())
	for want, args := range map[string][]string{
		"--hosts 0 is not between 1 and 200":               {"--hosts", "0"},
		`--pve-version "7.4" is neither 8.4 nor 9.2`:       {"--pve-version", "7.4"},
		"--speed -1 is negative":                           {"--speed", "-1"},
		`--guests "windows" is not one of`:                 {"--guests", "windows"},
		"need --guests qemu, not cloud-init":               {"--guest-image", "debian.qcow2"},
		"--guest-image: stat /no/such/image":               {"--guests", "qemu", "--guest-image", "/no/such/image"},
		`--guest-network "tap" is not one of shared, user`: {"--guests", "qemu", "--guest-network", "tap"},
		"flag provided but not defined: -nosuch":           {"--nosuch"},
		`"scenario.yaml" is not a flag`:                    {"scenario.yaml"},
		"line 3: cannot unmarshal":                         {"--scenario", broken},
		"opening scenario":                                 {"--scenario", "/no/such/file"},
		"starting simulator":                               {"--listen", "nowhere:x"},
	} {
		NewWithT(t).Expect(run(context.Background(), args, gbytes.NewBuffer())).To(MatchError(ContainSubstring(want)), "%v", args)
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(context.Background())
	ca := filepath.Join(t.TempDir(), "ca.pem")
	out, done := gbytes.NewBuffer(), make(chan error, 1)
	go func() {
		done <- run(ctx, []string{"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--hosts", "2", "--pve-version", "9.2", "--ca-out", ca}, out)
	}()
	for _, want := range []string{
		`API:   https://127\.0\.0\.1:\d+/api2/json \(Proxmox VE 9\.2, 2 hosts\)`, "CA:    " + ca, `Token: kubernetes@pve!karpenter=`, `Admin: http://`,
	} {
		g.Eventually(out, 2*time.Minute).Should(gbytes.Say(want))
	}
	g.Expect(os.ReadFile(ca)).To(HavePrefix("-----BEGIN CERTIFICATE-----"))
	cancel()
	g.Eventually(done, 2*time.Minute).Should(Receive(BeNil()))
}
