// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHoldingsDiff(t *testing.T) {
	t.Parallel()
	office := Guest{Host: "pve1", VMID: 101, Name: "office", Status: "running", Config: map[string]any{"cores": 2.0}}
	disk := Volume{"pve1", "local-lvm:vm-101-disk-0"}
	before := Holdings{Guests: []Guest{office}, Volumes: []Volume{disk}}
	change := func(f func(*Guest)) Holdings {
		g := office
		f(&g)
		return Holdings{Guests: []Guest{g}, Volumes: []Volume{disk}}
	}
	for name, c := range map[string]struct {
		after Holdings
		want  []string
	}{
		"no_change": {before, nil},
		"VM_leaked": {
			Holdings{Guests: []Guest{office, {Host: "pve2", VMID: 20001, Name: "node", Status: "stopped"}}, Volumes: []Volume{disk, {"pve2", "local:iso/x.iso"}}},
			[]string{"VM 20001 (node, stopped) leaked on host pve2", "volume local:iso/x.iso leaked on host pve2"},
		},
		"guest_gone":    {Holdings{}, []string{"guest 101 (office) is gone from host pve1", "volume local-lvm:vm-101-disk-0 is gone from host pve1"}},
		"guest_stopped": {change(func(g *Guest) { g.Status = "stopped" }), []string{"guest 101 (office) on host pve1 changed: it was running and is stopped"}},
		"guest_changed": {change(func(g *Guest) { g.Config = map[string]any{"cores": 4.0} }), []string{"guest 101 (office) on host pve1 changed: option cores was 2 and is 4"}},
	} {
		NewWithT(t).Expect(before.Diff(c.after)).To(Equal(c.want), name)
	}
}

// request returns a Node's certificate request by a bootstrap user.
func request(t *testing.T, name, node, user string) client.Object {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}, key)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	csr := &certificatesv1.CertificateSigningRequest{}
	csr.Name = name
	csr.Spec.SignerName = certificatesv1.KubeAPIServerClientKubeletSignerName
	csr.Spec.Username = user
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return csr
}

func TestCheckJoins(t *testing.T) {
	t.Parallel()
	w := NewBootRecorder(pvesim.CooperativeGuests{})
	// At its second boot, guest a has no CD.
	w.boots = []Boot{{Name: "a", TokenID: "aaaaaa"}, {Name: "b", TokenID: "bbbbbb"}, {Name: "a"}}
	own := request(t, "1", "system:node:a", "system:bootstrap:aaaaaa")
	for name, c := range map[string]struct {
		requests []client.Object
		joined   int
		problem  string
	}{
		"own_token":             {[]client.Object{own}, 1, ""},
		"token_of_another_node": {[]client.Object{request(t, "1", "system:node:a", "system:bootstrap:bbbbbb")}, 1, "requested by system:bootstrap:bbbbbb"},
		"administrator":         {[]client.Object{request(t, "1", "system:node:a", "admin")}, 1, "requested by admin"},
		"no_request":            {nil, 0, "made 0 certificate requests"},
		"two_requests":          {[]client.Object{own, request(t, "2", "system:node:a", "system:bootstrap:aaaaaa")}, 0, "made 2 certificate requests"},
		"unknown_node":          {[]client.Object{own, request(t, "2", "system:node:x", "system:bootstrap:aaaaaa")}, 1, "the certificate of node x"},
		"not_a_node":            {[]client.Object{own, request(t, "2", "admin", "system:bootstrap:aaaaaa")}, 1, "not a node"},
	} {
		kube := fake.NewClientBuilder().WithObjects(c.requests...).Build()
		joined, problems, err := w.CheckJoins(t.Context(), kube, []string{"a"})
		g := NewWithT(t)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(joined).To(Equal(c.joined), name)
		if c.problem == "" {
			g.Expect(problems).To(BeEmpty(), name)
		} else {
			g.Expect(problems).To(ContainElement(ContainSubstring(c.problem)), name)
		}
	}
}

func TestNewKit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	kit, err := NewKit("blue", "https://192.0.2.1:6443")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(kit.Pool.Spec.Template.Spec.NodeClassRef.Name).To(Equal(kit.Class.Name))
	g.Expect(kit.Class.Spec.InstanceTemplateRef.Name).To(Equal(kit.Template.Name))
	g.Expect(kit.Class.Spec.MetadataOptions.TemplatesRef.Name).To(Equal(kit.Templates.Name))
	g.Expect(kit.Class.Spec.MetadataOptions.ValuesRef.Name).To(Equal(kit.Values.Name))
	g.Expect(kit.Values.StringData).To(HaveKeyWithValue("apiServer", "https://192.0.2.1:6443"))
	g.Expect(kit.Templates.StringData["user-data"]).NotTo(BeEmpty())
}

func TestProcessExitError(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	p, err := startProcess("tool", log, exec.Command("sh", "-c", "echo last line >&2; exit 3"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(until(t.Context(), time.Minute, p, func(context.Context) error { return context.DeadlineExceeded })).To(MatchError(And(
		ContainSubstring("tool exited"), ContainSubstring("exit status 3"), ContainSubstring("last line"), ContainSubstring(log))))
}

func TestProcessStopKills(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	p, err := startProcess("stubborn", log, exec.Command("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() string { return Tail(log, 1) }).Should(Equal("up"))
	p.stop(200 * time.Millisecond)
	g.Expect(p.running()).To(BeFalse())
}
