// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"net/url"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const publicKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn/WDg2LyXlhoHA4nM/MpPjaSVjahNo me+you@x"

func TestEncodeSSHKeys(t *testing.T) {
	t.Parallel()
	// Accepted by a running Proxmox VE.
	want := "ssh-ed25519%20AAAAC3NzaC1lZDI1NTE5AAAAIGniXftUOUzZmSn%2FWDg2LyXlhoHA4nM%2FMpPjaSVjahNo%20me%2Byou%40x"
	NewWithT(t).Expect(proxmox.EncodeSSHKeys([]string{publicKey})).To(Equal(want), "encoded as")
	two := proxmox.EncodeSSHKeys([]string{publicKey, publicKey})
	if back, err := url.PathUnescape(two); err != nil || back != publicKey+"\n"+publicKey || strings.Contains(two, "+") {
		t.Errorf("two keys are encoded as %s (%v)", two, err)
	}
}

func TestCheckSSHKey(t *testing.T) {
	t.Parallel()
	_, blob, _ := strings.Cut(publicKey, " ")
	for line, want := range map[string]string{
		publicKey:                               "",
		`from="10.0.0.0/8",no-pty ` + publicKey: "",
		"not a key":                             "no SSH public key found",
		"":                                      "no SSH public key found",
		blob:                                    "no SSH public key found",
		publicKey + "\n" + publicKey:            "no SSH public key found",
		"ssh-rsa " + blob:                       `the SSH key's type does not match "ssh-rsa"`,
		"ssh-ed25519 AAAAC3NzaC1l":              "the SSH key is truncated",
		"ssh-ed25519 AAAA!!!!":                  "the SSH key is not valid base64",
	} {
		err := proxmox.CheckSSHKey(line)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: found %v, want %q", line, err, want)
		}
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
