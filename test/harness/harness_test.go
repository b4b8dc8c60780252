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
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestHoldingsDiff(t *testing.T) {
	t.Parallel()
	office := func(status string, cores float64) Holdings {
		return Holdings{
			Guests:  []Guest{{Host: "pve1", VMID: 101, Name: "office", Status: status, Config: map[string]any{"cores": cores}}},
			Volumes: []Volume{{"pve1", "local-lvm:vm-101-disk-0"}},
		}
	}
	before, more := office("running", 2), office("running", 2)
	more.Guests = append(more.Guests, Guest{Host: "pve2", VMID: 20001, Name: "node", Status: "stopped"})
	more.Volumes = append(more.Volumes, Volume{"pve2", "local:iso/x.iso"})
	for name, c := range map[string]struct {
		after Holdings
		want  []string
	}{
		"no_change":     {office("running", 2), nil},
		"leaked":        {more, []string{"guest 20001 on host pve2 leaked", "volume local:iso/x.iso on host pve2 leaked"}},
		"gone":          {Holdings{}, []string{"guest 101 on host pve1 is gone", "volume local-lvm:vm-101-disk-0 on host pve1 is gone"}},
		"guest_stopped": {office("stopped", 2), []string{"it is  office stopped"}},
		"guest_changed": {office("running", 4), []string{"cores:4"}},
	} {
		g, diff := NewWithT(t), before.Diff(c.after)
		g.Expect(diff).To(HaveLen(len(c.want)), name)
		for i, want := range c.want {
			g.Expect(diff[i]).To(ContainSubstring(want), name)
		}
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

func TestProcessHostname(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	before, err := os.Hostname()
	g.Expect(err).NotTo(HaveOccurred())
	p, err := startProcessOn("karpenter-0", "uname", log, exec.CommandContext(t.Context(), "uname", "-n"))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("SKIPPED: UTS namespaces need root; make conformance runs in a user namespace")
	}
	g.Expect(err).NotTo(HaveOccurred())
	<-p.done
	g.Expect(Tail(log, 1)).To(Equal("karpenter-0"))
	g.Expect(os.Hostname()).To(Equal(before), "the host name of this process")
}

func TestRunProcess(t *testing.T) {
	t.Parallel()
	g, log := NewWithT(t), filepath.Join(t.TempDir(), "log")
	g.Expect(RunProcess(t.Context(), "true", log, exec.CommandContext(t.Context(), "true"))).To(Succeed())
	g.Expect(RunProcess(t.Context(), "sh", log, exec.CommandContext(t.Context(), "sh", "-c", "echo reason; exit 3"))).
		To(MatchError(And(ContainSubstring("exit status 3"), ContainSubstring("reason"))))
}

// TestSecretsFindIn checks that the search finds secrets in every encoding. Tests rely on it
// finding nothing.
func TestSecretsFindIn(t *testing.T) {
	t.Parallel()
	s := &Secrets{values: map[string][]string{}, seen: map[string]bool{}}
	s.addSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "values"}, Data: map[string][]byte{
		"password": []byte("correct horse/battery\n\"staple\""), "apiServer": []byte("https://10.0.0.1:6443"), "short": []byte("true"),
	}})
	s.addSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{
		"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "auth-extra-groups": []byte("system:bootstrappers:karpenter"),
	}})
	s.Add("the token", "11111111-2222-3333-4444-555555555555\n")
	const password = "correct horse/battery\n\"staple\""
	for text, want := range map[string]string{
		"x" + password + "y":                                "values/password",
		`{"msg":"correct horse/battery\n\"staple\""}`:       "values/password",
		base64.StdEncoding.EncodeToString([]byte(password)): "values/password",
		"?a=" + url.QueryEscape(password):                   "values/password",
		"token abcdef.0123456789abcdef":                     "bootstrap-token-abcdef/token-secret",
		"=11111111-2222-3333-4444-555555555555":             "the token",
		"PVE:root@pam:65A1B2C3::c2ln":                       "login ticket",
		"Authorization: PVEAPIToken=a@pve!b=c":              "header of a token",
	} {
		NewWithT(t).Expect(s.FindIn("it", text)).To(HaveExactElements(ContainSubstring(want)), text)
	}
	NewWithT(t).Expect(s.FindIn("it", "https://10.0.0.1:6443 abcdef system:bootstrappers:karpenter true")).To(BeEmpty(), "public values")
}

const (
	ownRun   = "0b5c7a3e-1111-4222-8333-444455556666"
	otherRun = "9f5c7a3e-1111-4222-8333-444455556666"
)

func notes(cluster string, vmid int) string {
	return fmt.Sprintf("Karpenter managed instance\n\n<!-- karpenter.proxmox.sinextra.dev {\"v\":1,\"vmid\":%d,\"claim\":\"c\",\"cluster\":%q} -->\n", vmid, cluster)
}

// TestClean creates guests with the same name in the same VMID range and checks that only
// those of the run are deleted.
func TestClean(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			p, err := StartProxmox(t.Context(), ProxmoxOptions{Hosts: 2, Version: version, Speed: 20})
			g.Expect(err).NotTo(HaveOccurred())
			t.Cleanup(p.Close)
			add := func(vmid int, description string) {
				t.Helper()
				g.Expect(p.API.Run(t.Context(), http.MethodPost, "/nodes/pve1/qemu", url.Values{
					"vmid": {fmt.Sprint(vmid)}, "name": {"karpenter-node"}, "description": {description}, "scsi0": {"local-lvm:1"},
				})).To(Succeed())
			}
			add(20000, "")
			add(20001, notes(otherRun, 20001))
			add(20002, notes(ownRun, 20009)) // a copy
			add(20003, notes(ownRun, 20003)+notes(ownRun, 20003))
			add(20004, TestNotes(otherRun, 20004))
			before, err := p.API.Holdings(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			add(20010, notes(ownRun, 20010))
			add(20011, TestNotes(ownRun, 20011))
			g.Expect(p.API.Start(t.Context(), Guest{Host: "pve1", VMID: 20010})).To(Succeed())
			g.Expect(p.API.Clean(t.Context(), ownRun)).To(HaveLen(2))
			after, err := p.API.Holdings(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(before.Diff(after)).To(BeEmpty())
			_, err = p.API.Clean(t.Context(), "")
			g.Expect(err).To(HaveOccurred(), "without a cluster ID")
		})
	}
}

func TestIsBootDriveOf(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"local:iso/karpenter-0b5c7a3e-6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c.iso": true,
		"local:iso/karpenter-9f5c7a3e-6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c.iso": false,
		"local:iso/debian.iso":       false,
		"local-lvm:vm-20010-disk-0":  false,
		"karpenter-0b5c7a3e-disk-0":  false,
		"local:iso/karpenter--.iso":  false,
		"local:iso/0b5c7a3e-own.iso": false,
	} {
		NewWithT(t).Expect(Volume{Host: "pve1", ID: id}.isBootDriveOf(ownRun)).To(Equal(want), id)
	}
}

func TestStaleRecords(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), filepath.Join(t.TempDir(), "runs")
	for cluster, lab := range map[string]string{"running": "https://a", "ended": "https://a", "other_lab": "https://b"} {
		record, err := NewRecord(dir, cluster, lab)
		g.Expect(err).NotTo(HaveOccurred())
		if cluster == "running" {
			t.Cleanup(func() { _ = record.Release() })
		} else {
			g.Expect(record.Release()).To(Succeed())
		}
	}
	stale, err := StaleRecords(dir, "https://a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stale).To(HaveExactElements(HaveField("Cluster", "ended")))
	g.Expect(StaleRecords(dir, "https://a")).To(BeEmpty(), "it is locked")
	g.Expect(stale[0].Remove()).To(Succeed())
	g.Expect(filepath.Glob(filepath.Join(dir, "*"))).To(ConsistOf(HaveSuffix("running"), HaveSuffix("other_lab")))
}

func TestLoadLab(t *testing.T) {
	t.Parallel()
	g, dir := NewWithT(t), t.TempDir()
	cloud := "clusters: [{region: home, url: https://127.0.0.1:8006, token_id: " + pvesim.DefaultTokenID + ", token_secret: " + pvesim.DefaultTokenSecret + "}]"
	g.Expect(os.WriteFile(filepath.Join(dir, "cloud.yaml"), []byte(cloud), 0o600)).To(Succeed())
	const good = "cloudConfig: cloud.yaml\ntemplate: {name: ubuntu}\nvmids: {from: 20000, to: 20999}\n"
	for name, c := range map[string]struct{ content, want string }{
		"good":                {good, ""},
		"no_cloud_config":     {"template: {name: ubuntu}\nvmids: {from: 20000, to: 20999}\n", "cloudConfig"},
		"missing_file":        {strings.Replace(good, "cloud.yaml", "else.yaml", 1), "else.yaml"},
		"unknown_field":       {good + "storrage: local\n", "storrage"},
		"no_template":         {"cloudConfig: cloud.yaml\nvmids: {from: 20000, to: 20999}\n", "template"},
		"few_VMIDs":           {strings.Replace(good, "20999", "20010", 1), "20010"},
		"unknown_region":      {good + "region: work\n", `"work"`},
		"small_disk":          {good + "diskSize: 2G\n", "diskSize: found 2G, want at least 30G"},
		"invalid_disk":        {good + "diskSize: large\n", "diskSize: found large, want at least 30G"},
		"larger_disk":         {good + "diskSize: 32Gi\n", ""},
		"hostname_as_address": {good + "nodeAddress: laptop\n", `"laptop"`},
	} {
		file := filepath.Join(dir, name)
		g.Expect(os.WriteFile(file, []byte(c.content), 0o600)).To(Succeed())
		lab, err := LoadLab(file)
		if c.want == "" {
			g.Expect(err).NotTo(HaveOccurred(), name)
			g.Expect(lab.Region).To(Equal("home"))
			continue
		}
		g.Expect(err).To(MatchError(And(ContainSubstring(c.want), ContainSubstring(file), Not(ContainSubstring(pvesim.DefaultTokenSecret)))), name)
	}
}
