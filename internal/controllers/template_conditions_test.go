// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/checksum"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
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

// checksumEnv has one ProxmoxTemplate with the URL of a file of checksums.
type checksumEnv struct {
	*testenv.Env
	*sums
	object *v1alpha1.ProxmoxTemplate
	// mismatch is set if the last download had another checksum.
	mismatch bool
}

func (e *checksumEnv) HasChecksumMismatch(string) bool { return e.mismatch }

func newChecksumEnv(t *testing.T, content string) *checksumEnv {
	t.Helper()
	e := &checksumEnv{Env: testenv.New(t, testenv.NeverPolled()), sums: serve(t, content)}
	e.object = e.ManagedTemplate("https://images.example.com/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = e.url })
	return e
}

// reconcile runs a new controller once and returns after which time it runs again.
func (e *checksumEnv) reconcile() time.Duration {
	e.T.Helper()
	result := testenv.Reconcile(e.Env, checksum.NewController(e.Kube, e, e.Events, e.Clock, testenv.Web()), e.object)
	testenv.Reload(e.Env, e.object)
	return result.RequeueAfter
}

// resolved returns the condition of the template.
func (e *checksumEnv) resolved() string {
	return condition(e.object, v1alpha1.ConditionChecksumResolved)
}

func TestChecksumResolve(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		content, algorithm, value string
		// url is that of the file by default, and failure the end of the condition's message.
		url, failure string
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
		"unreachable_server": {url: "http://127.0.0.1:1/SUMS",
			failure: "the controller cannot reach the server (dial tcp: connect: connection refused); check the URL, and networkPolicy.egressPorts of the chart"},
		"not_found":    {url: "URL/MISSING", failure: `the server returned "404 Not Found"; fix the URL`},
		"no_checksums": {content: "<html>", failure: "it contains no checksums of files; set the URL of a file such as SHA256SUMS"},
		"two_checksums": {content: sha256Sum + "  a/noble.img\n" + strings.Repeat("00", 32) + "  b/noble.img\n",
			failure: `it lists two different sha256 checksums for "noble.img": ` + sha256Sum + " and " + strings.Repeat("00", 32)},
		"too_large": {content: strings.Repeat("x", 1<<20+1), failure: "the file has more than 1 MiB; set the URL of a file with checksums, such as SHA256SUMS"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newChecksumEnv(t, test.content)
			url := strings.Replace(cmp.Or(test.url, "URL"), "URL", e.url, 1)
			testenv.Modify(e.Env, e.object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = url })
			retry := e.reconcile()
			if test.failure != "" {
				e.Expect(retry).To(Equal(watch.Again))
				e.Expect(e.resolved()).To(And(HavePrefix("False ChecksumUnavailable: reading spec.sourceImage.checksumURL "+url+": "), HaveSuffix(test.failure)))
				e.Expect(e.object.Status.Checksum).To(BeNil())
				return
			}
			e.Expect(e.resolved()).To(HavePrefix("True"))
			e.Expect(e.object.Status.Checksum).To(And(HaveField("Type", test.algorithm), HaveField("Value", test.value), HaveField("FileName", "noble.img")))
			e.Expect(e.object.Source()).To(And(HaveField("Checksum", test.value), HaveField("ChecksumType", test.algorithm)))
		})
	}
}

// The checksum is read every 6 hours, also by a restarted controller, and earlier if an
// image does not match it. If that fails, the last one stays in use.
func TestResolveInterval(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newChecksumEnv(t, sha256Sum+"  noble.img\n")
		e.reconcile()
		hash := e.object.Hash()
		e.Clock.Advance(5 * time.Hour)
		e.reconcile()
		e.Expect(e.reads).To(Equal(1))

		e.Clock.Advance(time.Hour)
		e.reconcile()
		e.Expect(e.reads).To(Equal(2))
		e.Expect(e.object.Hash()).To(Equal(hash))
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(BeEmpty())

		e.mismatch = true
		e.Clock.Advance(5 * time.Minute)
		e.content = "unavailable"
		e.reconcile()
		e.Expect(e.reads).To(Equal(3))
		e.Expect(e.resolved()).To(HavePrefix("False"))
		e.Expect(e.object.Hash()).To(Equal(hash), "the last checksum stays in use")

		e.content = sha512Sum + "  noble.img\n"
		e.reconcile()
		e.Expect(e.resolved()).To(HavePrefix("True"))
		e.Expect(e.object.Hash()).NotTo(Equal(hash), "a new image is a new generation")
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(ConsistOf(
			e.url + " lists another sha512 for noble.img, " + sha512Sum + ": a new template is built and Nodes drift"))
	})
}

// An algorithm that is added to the file is no other image.
func TestResolveNewAlgorithm(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newChecksumEnv(t, sha256Sum+"  noble.img\n")
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
			e.content = test.content
			e.reconcile()
			e.Expect(e.resolved()).To(HavePrefix(test.condition), test.content)
			e.Expect(e.object.Status.Checksum.Value).To(Equal(test.value), test.content)
			e.Expect(e.object.Hash() == hash).To(Equal(test.value == sha256Sum), test.content)
		}
		e.Expect(e.Events.Messages(v1alpha1.EventImageChecksumChanged)).To(HaveLen(1), "when the known checksum is no longer listed")
	})
}

func TestResolveAfterChange(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		e := newChecksumEnv(t, sha256Sum+"  noble.img\n"+md5Sum+"  plucky.img\n")
		e.reconcile()
		testenv.Modify(e.Env, e.object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.URL = "https://images.example.com/plucky.img" })
		e.Expect(e.object.Source().Checksum).To(BeEmpty(), "the checksum of the old image is not used")
		e.reconcile()
		e.Expect(e.object.Source().Checksum).To(Equal(md5Sum))

		testenv.Modify(e.Env, e.object, func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = "" })
		e.Expect(e.reconcile()).To(BeZero())
		e.Expect(e.object.Status.Checksum).To(BeNil())
		e.Expect(e.resolved()).To(BeEmpty())
	})
}

// storages sets spec.storageIDs.
func storages(ids ...string) func(*v1alpha1.ProxmoxTemplate) {
	return func(o *v1alpha1.ProxmoxTemplate) { o.Spec.StorageIDs = ids }
}

// fill fills a storage.
func fill(storage string) func(*testenv.Env) {
	return func(w *testenv.Env) { w.Expect(w.Sim.SetStorageFull(storage, true)).To(Succeed()) }
}

// buildLacks is the reason of both hosts if privileges are missing.
func buildLacks(missing, privileges string) string {
	return strings.Replace(lacks(missing, privileges), "region-1/pve1", "pve1, pve2", 1)
}

// The condition names the host and the object that failed, and how to fix it.
func TestBuildFailureCondition(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		scenario func(*pvesim.Scenario)
		before   func(*testenv.Env)
		change   func(*v1alpha1.ProxmoxTemplate)
		want     string
	}{
		"missing_privilege": {scenario: withoutPrivilege("Karpenter VM.Allocate"), want: buildLacks("VM.Allocate on /vms", "VM.Allocate")},
		"hidden_storages": {scenario: withoutPrivilege("Karpenter Datastore.Audit"),
			want: buildLacks("Datastore.Audit on /storage/local, /storage/local-lvm", "Datastore.Audit")},
		"missing_privileges": {scenario: withoutPrivilege("Karpenter Sys.AccessNetwork", "Karpenter VM.Config.Network", "Karpenter SDN.Use"),
			want: buildLacks("Sys.AccessNetwork on /nodes/pve1, /nodes/pve2; VM.Config.Network on /vms; SDN.Use on /sdn/zones/localnetwork/vmbr0",
				"SDN.Use Sys.AccessNetwork VM.Config.Network")},
		"forbidden_tag": {scenario: func(s *pvesim.Scenario) { s.Options = map[string]string{"registered-tags": "golden"} },
			change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Tags = []string{"golden"} },
			want: `pve1, pve2: spec.tags: tag "golden" is not allowed: it is a registered tag, which requires Sys.Modify on /; ` +
				"remove it from registered-tags (Datacenter, Options)"},
		"image_not_found": {change: func(o *v1alpha1.ProxmoxTemplate) {
			o.Spec.SourceImage.URL = strings.Replace(o.Spec.SourceImage.URL, "noble", "missing", 1)
		},
			want: `pve1: downloading the image: the server returned "404: Not Found" for spec.sourceImage.url; fix it, check with: curl -I URL/missing.qcow2`},
		"image_storage_full": {before: fill("local"),
			want: `pve1: downloading the image: storage local is full; free space on it, check with: pvesm status --storage local`},
		"template_storage_full": {scenario: localContent("import", "iso"), before: fill("local-lvm"),
			want: `pve1: creating VM 1000: storage local-lvm is full \(.*reached threshold.*\); free space on it, check with: pvesm status --storage local-lvm`},
		"no_storage_with_import_content": {scenario: localContent("iso", "vztmpl", "images"),
			want: `pve1, pve2: no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set local --content import,iso,vztmpl,images`},
		"no_storage_with_images_content": {scenario: localContent("import"), change: storages("local"),
			want: `pve1, pve2: no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import`},
		"unknown_storage": {change: storages("system"), want: `pve1, pve2: none of spec.storageIDs (system) is on this host, which has local, local-lvm`},
		"misspelled_storage": {scenario: localContent("import", "iso"), change: storages("local", "local-lvmm"),
			want: `pve1, pve2: local-lvmm of spec.storageIDs is not on this host, which has local, local-lvm; the others are not sufficient: ` +
				`no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set local --content images,import,iso`},
		"no_quorum": {before: func(w *testenv.Env) { w.Sim.SetQuorum(false) },
			want: `region region-1: the Proxmox cluster has no quorum \(.*\): bring its hosts back online, check with: pvecm status`},
		"unknown_resource_pool": {change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.ResourcePool = "nowhere" },
			want: `pve1: creating VM 1000: spec.resourcePool "nowhere" does not exist; run: pveum pool add nowhere`},
		"unknown_region": {change: func(o *v1alpha1.ProxmoxTemplate) { o.Spec.Region = "mars" },
			want: `spec.region "mars" is not in the cloud config, which has region-1`},
	} {
		testenv.With(testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { change(s, test.scenario) })).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			change(w, test.before)
			manage(w)
			url := testenv.ServeImages(w.T, 64<<10).URL
			object := w.ManagedTemplate(url+"/noble.qcow2", func(o *v1alpha1.ProxmoxTemplate) { change(o, test.change) })
			want := test.want
			if strings.HasPrefix(want, "pve1, pve2: ") {
				want = regexp.QuoteMeta(want)
			}
			want = strings.NewReplacer("URL", url, "VM 1000: ", `VM 100\d: `).Replace(want)
			waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, MatchRegexp(`^False NodeTemplateClassResolutionError: (.*; )?`+want+`(;|$)`))
			// Of the same read: the next attempt changes the conditions.
			if ready := object.StatusConditions().Root(); ready.IsFalse() {
				w.Expect(ready.Message).To(MatchRegexp(v1alpha1.ConditionTemplateReady+": (.*; )?"+want+`(;|$)`), "Ready reports the cause")
			}
		})
	}
}

// Template 9000 of region-1 is in use.
func TestListUsage(t *testing.T) {
	t.Parallel()
	const linked = "1 nodes are linked clones of it"
	for name, test := range map[string]struct {
		launched            bool // a VM of the class, as a linked clone of template 9000
		mark                func(*ownership.Mark)
		planned             bool // and not launched
		zones, classZones   []string
		deleted, otherClass bool
		want                string
	}{
		"unused":                     {zones: []string{"region-1/pve1/1001"}, classZones: []string{"region-2/pve1/9000"}},
		"linked_clone":               {launched: true, want: linked},
		"linked_clone_while_deleted": {launched: true, deleted: true, otherClass: true, want: linked},
		"full_clone":                 {launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }},
		"clone_of_other_template":    {launched: true, mark: func(m *ownership.Mark) { m.Source.VMID = 1001 }},
		"adopted":                    {launched: true, mark: func(m *ownership.Mark) { m.Source = nil }},
		"launch_in_progress":         {planned: true, want: linked},
		"status":                     {zones: []string{"region-1/pve1/9000"}, want: "it is in use until the new generation is on every host"},
		"status_while_deleted":       {zones: []string{"region-1/pve1/9000"}, classZones: []string{"region-1/pve1/9000"}, deleted: true},
		"class":                      {classZones: []string{"region-1/pve1/9000"}, want: "NodeClass default still uses it"},
		"claim_while_deleted": {
			launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }, deleted: true, want: "1 NodeClaims still use the ProxmoxTemplate",
		},
		"claim_of_others_while_deleted": {launched: true, mark: func(m *ownership.Mark) { m.Source.Full = true }, deleted: true, otherClass: true},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			object := w.ManagedTemplate("https://images.example.com/noble.img", func(o *v1alpha1.ProxmoxTemplate) {
				o.Finalizers = []string{v1alpha1.TerminationFinalizer}
			})
			known := object.DeepCopy() // as it was read before
			class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.InstanceTemplateRef = v1alpha1.InstanceTemplateReference{Kind: v1alpha1.ProxmoxTemplateKind, Name: object.Name}
				if test.otherClass {
					c.Spec.InstanceTemplateRef.Kind = v1alpha1.ProxmoxUnmanagedTemplateKind
				}
			})
			if test.planned {
				w.Planned("a", class)
			}
			if test.launched {
				setMark(w, w.Launched("a", class), func(m *ownership.Mark) { change(m, test.mark) })
			}
			testenv.ModifyStatus(w, object, func(o *v1alpha1.ProxmoxTemplate) { o.Status.Zones = test.zones })
			testenv.ModifyStatus(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Status.SelectedZones = test.classZones })
			if test.deleted {
				w.Expect(w.Kube.Delete(w.Context(), object)).To(Succeed())
			}
			list := build.ListUsage(w.Kube, w.Templates(), known)
			w.Create(&v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "later"}})
			usage, err := list(w.Context())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(usage.InUse(testenv.Region, 9000)).To(Equal(test.want))
			w.Expect(usage.Desired).To(ConsistOf(HaveField("Name", object.Name), HaveField("Name", "later")))
		})
	}
}

// fetchSum returns the SHA256 sum of the content of a URL.
func fetchSum(w *testenv.Env, url string) string {
	w.T.Helper()
	response, err := (&http.Client{Transport: testenv.Web()}).Get(url)
	w.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	w.Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("%x", sha256.Sum256(content))
}

// Nothing is built before the checksum is read, and only an image that matches it is used.
func TestBuildWithChecksumURL(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, _ *testenv.Process) {
		server, sums := testenv.ServeImages(w.T, 64<<10), serve(w.T, "no checksums")
		templates := manage(w)
		object := w.ManagedTemplate(server.URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = sums.url })
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix("False Building: spec.sourceImage.checksumURL has not been read yet"))
		resolve := func(text, want string) {
			w.T.Helper()
			sums.content = text
			w.Clock.Advance(5 * time.Minute) // the file is read again after a mismatch
			testenv.Reconcile(w, checksum.NewController(w.Kube, templates, w.Events, w.Clock, testenv.Web()), object)
			w.Expect(testenv.Reload(w, object).Source().Checksum).To(Equal(want))
		}
		resolve(sums.content, "")
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix(
			"False NodeTemplateClassResolutionError: reading spec.sourceImage.checksumURL "+sums.url+`: it lists no checksum for "noble.img"`))
		w.Expect(server.Fetched("/noble.img")).To(BeZero())

		wrong := strings.Repeat("00", 32)
		resolve(wrong+"  noble.img\n", wrong)
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, MatchRegexp("^False NodeTemplateClassResolutionError: (.*; )?pve1: downloading the image: "+
			"%s/noble.img does not match spec.sourceImage.checksumURL, its sha256 is [0-9a-f]{64}; fix checksumURL or url", server.URL))

		right := fetchSum(w, server.URL+"/noble.img")
		resolve(right+" *noble.img\n", right)
		waitUntilUpToDate(w, object)
		w.Expect(w.Volumes("pve1", "local", "import")).To(HaveLen(1))
	})
}
