// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/checksum"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

var (
	sha256Sum = strings.Repeat("a1", 32)
	sha512Sum = strings.Repeat("b2", 64)
	md5Sum    = strings.Repeat("c3", 16)
)

// sums is a web server with a file of checksums.
type sums struct {
	url, content string
	reads        int
}

func serve(t *testing.T, content string) *sums {
	t.Helper()
	s := &sums{content: content}
	s.url = testenv.ServeWeb(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.reads++
		if r.URL.Path != "/SUMS" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(s.content))
	})) + "/SUMS"
	return s
}

// downloads reports whether the last download had another checksum.
type downloads struct{ mismatch bool }

func (d *downloads) HasChecksumMismatch(string) bool { return d.mismatch }

// checksumEnv has one ProxmoxTemplate with a checksumURL.
type checksumEnv struct {
	*testenv.Env
	downloads downloads
	object    *v1alpha1.ProxmoxTemplate
}

func newChecksumEnv(t *testing.T, checksumURL string) *checksumEnv {
	t.Helper()
	w := testenv.New(t, testenv.NeverPolled())
	return &checksumEnv{Env: w, object: w.ManagedTemplate("https://images.example.com/noble.img", func(o *v1alpha1.ProxmoxTemplate) {
		o.Spec.SourceImage.ChecksumURL = checksumURL
	})}
}

// reconcile runs a new controller once and returns after which time it runs again.
func (e *checksumEnv) reconcile() time.Duration {
	e.T.Helper()
	result, err := checksum.NewController(e.Kube, &e.downloads, e.Events, e.Clock, testenv.Web()).Reconcile(e.T.Context(), testenv.Reload(e.Env, e.object))
	e.Expect(err).NotTo(HaveOccurred())
	testenv.Reload(e.Env, e.object)
	return result.RequeueAfter
}

func (e *checksumEnv) condition() string {
	c := e.object.StatusConditions().Get(v1alpha1.ConditionChecksumResolved)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func TestChecksumResolve(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content, algorithm, value string
		// failure is the end of the condition's message.
		failure string
	}{
		"GNU_text":          {content: sha256Sum + "  noble.img\n" + md5Sum + "  other.img\n", algorithm: "sha256", value: sha256Sum},
		"GNU_binary":        {content: md5Sum + " *other.img\n" + sha512Sum + " *noble.img\n", algorithm: "sha512", value: sha512Sum},
		"BSD":               {content: "# comment\nSHA256 (noble.img) = " + sha256Sum + "\n", algorithm: "sha256", value: sha256Sum},
		"signed":            {content: "-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nSHA256 (noble.img) = " + sha256Sum + "\n-----BEGIN PGP SIGNATURE-----\n\niQIz\n", algorithm: "sha256", value: sha256Sum},
		"name_with_path":    {content: sha256Sum + "  ./noble/noble.img\r\n", algorithm: "sha256", value: sha256Sum},
		"upper_case":        {content: strings.ToUpper(sha256Sum) + "  noble.img\n", algorithm: "sha256", value: sha256Sum},
		"strongest":         {content: md5Sum + "  noble.img\n" + sha512Sum + "  noble.img\n" + sha256Sum + "  noble.img\n", algorithm: "sha512", value: sha512Sum},
		"only_a_hash":       {content: sha256Sum + "\n", algorithm: "sha256", value: sha256Sum},
		"unknown_algorithm": {content: "BLAKE2b (noble.img) = " + sha512Sum + "\nSHA256 (noble.img) = " + sha256Sum + "\n", algorithm: "sha256", value: sha256Sum},
		"not_listed": {
			content: strings.Repeat(sha256Sum+"  other.img\n", 7),
			failure: `it lists no checksum for "noble.img", the last part of the image's URL; it lists other.img, other.img, other.img, other.img, other.img and 2 more`,
		},
		"no_checksums": {content: "<html>", failure: "it contains no checksums of files; set the URL of a file such as SHA256SUMS"},
		"two_checksums": {content: sha256Sum + "  a/noble.img\n" + strings.Repeat("00", 32) + "  b/noble.img\n",
			failure: `it lists two different sha256 checksums for "noble.img": ` + sha256Sum + " and " + strings.Repeat("00", 32)},
		"too_large": {content: strings.Repeat("x", 1<<20+1), failure: "the file has more than 1 MiB; set the URL of a file with checksums, such as SHA256SUMS"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			server := serve(t, test.content)
			e := newChecksumEnv(t, server.url)
			e.reconcile()
			if test.failure != "" {
				e.Expect(e.condition()).To(And(
					HavePrefix("False ChecksumUnavailable: reading spec.sourceImage.checksumURL "+server.url+": "), HaveSuffix(test.failure)))
				e.Expect(e.object.Status.Checksum).To(BeNil())
				return
			}
			e.Expect(e.condition()).To(HavePrefix("True"))
			e.Expect(e.object.Status.Checksum).To(And(HaveField("Type", test.algorithm), HaveField("Value", test.value), HaveField("FileName", "noble.img")))
			e.Expect(e.object.Source()).To(And(HaveField("Checksum", test.value), HaveField("ChecksumType", test.algorithm)))
		})
	}
}

func TestResolveUnreachable(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ url, want string }{
		"server": {"http://127.0.0.1:1/SUMS",
			"the controller cannot reach the server (dial tcp: connect: connection refused); check the URL, and networkPolicy.egressPorts of the chart"},
		"not_found": {"URL/MISSING", `the server returned "404 Not Found"; fix the URL`},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newChecksumEnv(t, strings.Replace(test.url, "URL", serve(t, "").url, 1))
			e.Expect(e.reconcile()).To(Equal(time.Minute))
			e.Expect(e.condition()).To(HaveSuffix(test.want))
		})
	}
}

// The checksum is read every 6 hours, also by a restarted controller, and earlier if an
// image does not match it. If that fails, the last one stays in use.
func TestResolveInterval(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		server := serve(t, sha256Sum+"  noble.img\n")
		e := newChecksumEnv(t, server.url)
		e.reconcile()
		hash := e.object.Hash()
		e.Clock.Advance(5 * time.Hour)
		e.reconcile()
		e.Expect(server.reads).To(Equal(1))

		e.Clock.Advance(time.Hour)
		e.reconcile()
		e.Expect(server.reads).To(Equal(2))
		e.Expect(e.object.Hash()).To(Equal(hash))
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(BeEmpty())

		e.downloads.mismatch = true
		e.Clock.Advance(5 * time.Minute)
		server.content = "unavailable"
		e.reconcile()
		e.Expect(server.reads).To(Equal(3))
		e.Expect(e.condition()).To(HavePrefix("False"))
		e.Expect(e.object.Hash()).To(Equal(hash), "the last checksum stays in use")

		server.content = sha512Sum + "  noble.img\n"
		e.reconcile()
		e.Expect(e.condition()).To(HavePrefix("True"))
		e.Expect(e.object.Hash()).NotTo(Equal(hash), "a new image is a new generation")
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(ConsistOf(
			server.url + " lists another sha512 for noble.img, " + sha512Sum + ": a new template is built and Nodes drift"))
	})
}

// An algorithm that is added to the file is no other image.
func TestResolveNewAlgorithm(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		server := serve(t, sha256Sum+"  noble.img\n")
		e := newChecksumEnv(t, server.url)
		e.reconcile()
		hash, other := e.object.Hash(), strings.Repeat("00", 32)
		for _, test := range []struct {
			content, value string
			condition      string
		}{
			{sha512Sum + "  noble.img\n" + sha256Sum + "  noble.img\n", sha256Sum, "True"},
			{sha512Sum + "  noble.img\n" + sha256Sum + "  noble.img\n" + other + "  old/noble.img\n", sha256Sum, "False"},
			{sha512Sum + "  noble.img\n" + other + "  noble.img\n", sha512Sum, "True"},
		} {
			e.Clock.Advance(6 * time.Hour)
			server.content = test.content
			e.reconcile()
			e.Expect(e.condition()).To(HavePrefix(test.condition), test.content)
			e.Expect(e.object.Status.Checksum.Value).To(Equal(test.value), test.content)
			e.Expect(e.object.Hash() == hash).To(Equal(test.value == sha256Sum), test.content)
		}
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(HaveLen(1), "when the known checksum is no longer listed")
	})
}

func TestResolveAfterChange(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		server := serve(t, sha256Sum+"  noble.img\n"+md5Sum+"  plucky.img\n")
		e := newChecksumEnv(t, server.url)
		e.reconcile()
		testenv.Modify(e.Env, e.object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL = "https://images.example.com/plucky.img" })
		e.Expect(e.object.Source().Checksum).To(BeEmpty(), "the checksum of the old image is not used")
		e.reconcile()
		e.Expect(e.object.Source().Checksum).To(Equal(md5Sum))

		testenv.Modify(e.Env, e.object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = "" })
		e.Expect(e.reconcile()).To(BeZero())
		e.Expect(e.object.Status.Checksum).To(BeNil())
		e.Expect(e.condition()).To(BeEmpty())
	})
}
