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
	"slices"
	"strings"
	"testing"
	"time"

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
		if got := before.Diff(c.after); !slices.Equal(got, c.want) {
			t.Errorf("%s: differences are %q, want %q", name, got, c.want)
		}
	}
}

// request returns a Node's certificate request by a bootstrap user.
func request(t *testing.T, name, node, user string) client.Object {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: node}}, key)
	if err != nil {
		t.Fatal(err)
	}
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
		if err != nil || joined != c.joined || (c.problem == "") != (len(problems) == 0) || !strings.Contains(strings.Join(problems, ";"), c.problem) {
			t.Errorf("%s: %d joined with problems %q (%v), want %d and %q", name, joined, problems, err, c.joined, c.problem)
		}
	}
}

func TestNewKit(t *testing.T) {
	t.Parallel()
	kit, err := NewKit("blue", "https://192.0.2.1:6443")
	if err != nil {
		t.Fatal(err)
	}
	options := kit.Class.Spec.MetadataOptions
	if kit.Pool.Spec.Template.Spec.NodeClassRef.Name != kit.Class.Name || kit.Class.Spec.InstanceTemplateRef.Name != kit.Template.Name ||
		options.TemplatesRef.Name != kit.Templates.Name || options.ValuesRef.Name != kit.Values.Name {
		t.Error("the objects do not refer to each other")
	}
	if kit.Values.StringData["apiServer"] != "https://192.0.2.1:6443" || kit.Templates.StringData["user-data"] == "" {
		t.Error("the secrets are empty")
	}
}

func TestProcessExitError(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcess("tool", log, exec.Command("sh", "-c", "echo last line >&2; exit 3"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = until(ctx, time.Minute, p, func(context.Context) error { return context.DeadlineExceeded })
	for _, want := range []string{"tool exited", "exit status 3", "last line", log} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %[2]v, want it to contain %[1]q", want, err)
		}
	}
}

func TestProcessStopKills(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	p, err := startProcess("stubborn", log, exec.Command("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"))
	if err != nil {
		t.Fatal(err)
	}
	err = until(t.Context(), time.Minute, p, func(context.Context) error {
		if Tail(log, 1) != "up" {
			return context.DeadlineExceeded
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.stop(200 * time.Millisecond)
	if p.running() {
		t.Error("process is still running")
	}
}
