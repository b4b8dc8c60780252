// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn/WDg2LyXlhoHA4nM/MpPjaSVjahNo me+you@x"

func TestEncodeSSHKeys(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	// Accepted by a running Proxmox VE.
	want := "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn%2FWDg2LyXlhoHA4nM%2FMpPjaSVjahNo%20me%2Byou%40x"
	g.Expect(proxmox.EncodeSSHKeys([]string{publicKey})).To(Equal(want))
	two := proxmox.EncodeSSHKeys([]string{publicKey, publicKey})
	g.Expect(two).NotTo(ContainSubstring("+"))
	g.Expect(url.PathUnescape(two)).To(Equal(publicKey + "\n" + publicKey))
}

func TestCheckSSHKey(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	_, blob, _ := strings.Cut(publicKey, " ")
	for line, want := range map[string]string{
		publicKey:                               "<nil>",
		`from="10.0.0.0/8",no-pty ` + publicKey: "<nil>",
		"not a key":                             "no SSH public key found",
		"":                                      "no SSH public key found",
		blob:                                    "no SSH public key found",
		publicKey + "\n" + publicKey:            "no SSH public key found",
		"ssh-rsa " + blob:                       `the SSH key's type does not match "ssh-rsa"`,
		"ssh-ed25519 AAAAC3NzaC1l":              "the SSH key is truncated",
		"ssh-ed25519 AAAA!!!!":                  "the SSH key is not valid base64",
	} {
		g.Expect(fmt.Sprint(proxmox.CheckSSHKey(line))).To(HavePrefix(want), line)
	}
}

func FuzzCheckSSHKey(f *testing.F) {
	f.Add(publicKey)
	f.Add("ssh-rsa AAAA/////w==")
	f.Fuzz(func(_ *testing.T, line string) { _ = proxmox.CheckSSHKey(line) })
}

func TestSnippets(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const value = "meta=a:snippets/m,vendor=local:snippets/worker.yaml"
	got := proxmox.ParseSnippets(value)
	g.Expect(got).To(Equal(map[string]string{"meta": "a:snippets/m", "vendor": "local:snippets/worker.yaml"}))
	g.Expect(proxmox.EncodeSnippets(got)).To(Equal(value), "written as")
}
