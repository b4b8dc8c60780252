// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// processWithEvents returns a process with its clock, whose events the recorder gets.
func (e *env) processWithEvents() (*process, *testenv.Recorder, *testenv.Clock) {
	e.t.Helper()
	p, recorder, clock := e.process(), &testenv.Recorder{}, testenv.NewSteppedClock(testenv.Speed)
	p.Provider = testenv.NewTemplates(template.Deps{
		Clients: map[string]proxmox.Client{region: e.client()}, Inventory: p.Inventory(), Clock: clock, KubeCluster: kubeCluster, Recorder: recorder,
	}, 0)
	return p, recorder, clock
}

// serveVolume creates a volume that is not ours on a Host.
func (e *env) serveVolume(host, name string) string {
	e.t.Helper()
	task, err := e.client().DownloadImage(e.t.Context(), proxmox.DownloadRequest{Host: host, Storage: "local", Name: name, URL: e.images.URL + "/other.qcow2"})
	e.Expect(err).NotTo(HaveOccurred())
	_, err = proxmox.WaitTask(e.t.Context(), e.client(), task, proxmox.WaitOptions{Durations: proxmox.NewDurations(), Clock: testenv.NewSteppedClock(testenv.Speed)})
	e.Expect(err).NotTo(HaveOccurred())
	return "local:import/" + name
}

func TestDownloadFromMirrors(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		urls []string
		// checksum is not that of the images.
		checksum string
		// used is the path that the image was downloaded from.
		used, event, failure string
	}{
		"first_works": {urls: []string{"URL/noble.img", "URL/missing.qcow2"}, used: "/noble.img"},
		"not_found": {
			urls: []string{"URL/missing.qcow2", "URL/noble.img"}, used: "/noble.img",
			event: `host pve1: downloading the image: the server returned "404: Not Found" for spec.sourceImage.urls[0]; fix it, check with: curl -I URL/missing.qcow2; trying URL/noble.img`,
		},
		"unreachable": {
			urls: []string{"http://127.0.0.1:1/noble.qcow2", "URL/noble.img"}, used: "/noble.img",
			event: `host pve1: downloading the image: host pve1 cannot reach the server of spec.sourceImage.urls[0] (Connection refused); fix it, check on the host with: curl -I http://127.0.0.1:1/noble.qcow2; trying URL/noble.img`,
		},
		"none_works": {
			urls:    []string{"http://127.0.0.1:1/noble.qcow2", "URL/missing.qcow2"},
			event:   `trying URL/missing.qcow2`,
			failure: `pve1: no mirror of spec.sourceImage.urls works: downloading the image: host pve1 cannot reach the server of spec.sourceImage.urls[0] (Connection refused)`,
		},
		"wrong_checksum": {
			urls: []string{"URL/noble.qcow2", "URL/plucky.qcow2"}, checksum: strings.Repeat("0", 32),
			event:   `downloading the image: URL/noble.qcow2 does not match spec.sourceImage.checksum, its md5 is `,
			failure: `URL/plucky.qcow2 does not match spec.sourceImage.checksum`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			withURL := func(text string) string { return strings.ReplaceAll(text, "URL", e.images.URL) }
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.SourceImage = v1alpha1.SourceImage{Checksum: test.checksum}
				if test.checksum != "" {
					s.SourceImage.ChecksumType = "md5"
				}
				for _, url := range test.urls {
					s.SourceImage.URLs = append(s.SourceImage.URLs, withURL(url))
				}
			})
			p, recorder, _ := e.processWithEvents()
			if test.failure == "" {
				p.reconcileUntilComplete()
				e.Expect(e.images.Fetched(test.used)).To(Equal(64<<10), "one download")
				e.Expect(e.images.Fetched("/missing.qcow2")).To(BeZero())
			} else {
				p.reconcileUntil(func(g Gomega) {
					g.Expect(p.report().Failing).To(BeTrue())
					g.Expect(p.report().Message).To(ContainSubstring(withURL(test.failure)))
				})
			}
			messages := recorder.Messages(v1alpha1.EventImageDownloadFailed)
			if test.event == "" {
				e.Expect(messages).To(BeEmpty())
			} else {
				e.Expect(messages).To(ContainElement(ContainSubstring(withURL(test.event))))
			}
			e.Expect(p.HasChecksumMismatch(uid)).To(Equal(test.checksum != ""))
		})
	}
}

// A mirror that does not respond is left for the next one, and the condition names both.
func TestDownloadFromUnresponsiveMirror(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	t.Cleanup(e.images.Hold("/silent.img"))
	release := e.images.Hold("/noble.img")
	t.Cleanup(release)
	silent, noble := e.images.URL+"/silent.img", e.images.URL+"/noble.img"
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.SourceImage = v1alpha1.SourceImage{URLs: []string{silent, noble}}
	})
	p, recorder, clock := e.processWithEvents()
	done := make(chan error, 1)
	go func() { done <- p.reconcile(t.Context(), "pve1") }()
	e.Eventually(func() string { return p.report().Message }).WithTimeout(30 * time.Second).Should(Equal("pve1: downloading from " + silent))
	// The message can be set before the time without a response begins to count.
	e.Eventually(func() string { clock.Advance(time.Minute); return p.report().Message }).WithTimeout(30 * time.Second).WithPolling(10 * time.Millisecond).
		Should(Equal("pve1: downloading from " + noble + ", because " + silent + " failed"))
	release()
	e.Expect(<-done).To(Succeed())
	p.reconcileUntilComplete()
	e.Expect(recorder.Messages(v1alpha1.EventImageDownloadFailed)).To(ConsistOf(ContainSubstring("the server of spec.sourceImage.urls[0] did not respond to host pve1 within 1m0s")))
	_, images, _ := e.createdObjects()
	e.Expect(images).To(HaveLen(1))
}

// A restarted controller waits for the download in progress and continues with the mirror
// after it.
func TestDownloadFromMirrorsAfterRestart(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	release := e.images.Hold("/missing.qcow2")
	t.Cleanup(release)
	missing, noble := e.images.URL+"/missing.qcow2", e.images.URL+"/noble.img"
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.SourceImage = v1alpha1.SourceImage{URLs: []string{missing, noble}}
	})
	image, err := template.NewImage(e.object.Spec.SourceImage, kubeCluster)
	e.Expect(err).NotTo(HaveOccurred())
	_, err = e.client().DownloadImage(t.Context(), proxmox.DownloadRequest{Host: "pve1", Storage: "local", Name: image.Name, URL: missing})
	e.Expect(err).NotTo(HaveOccurred())
	p, recorder, _ := e.processWithEvents()
	e.sim.ResetRequests()
	done := make(chan error, 1)
	go func() { done <- p.reconcile(t.Context(), "pve1") }()
	e.Eventually(func() string { return p.report().Message }).WithTimeout(30 * time.Second).Should(Equal("pve1: downloading from " + missing))
	release()
	e.Expect(<-done).To(Succeed())
	p.reconcileUntilComplete()
	e.Expect(e.images.Fetched("/noble.img")).To(Equal(64 << 10))
	e.Expect(recorder.Messages(v1alpha1.EventImageDownloadFailed)).To(HaveLen(1))
	downloads := 0
	for _, request := range e.sim.Requests() {
		if strings.HasSuffix(request.Path, "/download-url") {
			downloads++
		}
	}
	e.Expect(downloads).To(Equal(1), "the download in progress is not repeated")
}

// A build whose first mirror fails and that crashes at any call is completed by the next
// process, with one download and without orphans.
func TestBuildFromMirrorsCrash(t *testing.T) {
	t.Parallel()
	withMirrors := func(e *env) {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
			s.SourceImage = v1alpha1.SourceImage{URLs: []string{e.images.URL + "/missing.qcow2", e.images.URL + "/noble.img"}}
		})
	}
	e := newEnv(t, 1)
	withMirrors(e)
	calls, at := e.recordCalls(func() { e.Expect(e.process().reconcile(t.Context(), "pve1")).To(Succeed()) })
	atEveryCall(t, calls, at, func(t *testing.T, n int, after bool) {
		e := newEnv(t, 1)
		withMirrors(e)
		_ = e.process().reconcile(testenv.KillAtRequest(e.t, e.sim, n, after), "pve1")
		e.sim.ClearFaults()
		next := e.process()
		next.reconcileUntilComplete()
		e.Expect(e.images.Fetched("/noble.img")).To(Equal(64 << 10))
		next.deleteUntilGone()
		e.Expect(e.listObjects()).To(Equal(e.initial), "no orphans")
	})
}

// Messages do not contain the password of a URL.
func TestDownloadMessagesWithoutPassword(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.SourceImage = v1alpha1.SourceImage{URLs: []string{"http://me:hunter2@127.0.0.1:1/a.img", "http://me:hunter2@127.0.0.1:2/a.img"}}
	})
	p, recorder, _ := e.processWithEvents()
	p.reconcileUntil(func(g Gomega) {
		g.Expect(p.report().Message).To(ContainSubstring("no mirror of spec.sourceImage.urls works"))
	})
	e.Expect(p.report().Message).To(And(ContainSubstring("http://me:xxxxx@127.0.0.1:1/a.img"), Not(ContainSubstring("hunter2"))))
	e.Expect(recorder.Messages(v1alpha1.EventImageDownloadFailed)).To(And(Not(BeEmpty()), Not(ContainElement(ContainSubstring("hunter2")))))
}

func TestDownloadTalosImage(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 1)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.SourceImage = v1alpha1.SourceImage{Talos: &v1alpha1.TalosImage{Schematic: "376567988a", Version: "v1.11.3", Arch: "amd64", FactoryURL: e.images.URL + "/"}}
	})
	report := e.process().reconcileUntilComplete()
	e.Expect(e.images.Fetched("/image/376567988a/v1.11.3/nocloud-amd64.qcow2")).To(Equal(64 << 10))
	e.Expect(report.ImageID).To(HavePrefix("talos-v1.11.3-nocloud-amd64-"))
}

// A volume is imported and never deleted, also if its name is that of an image that we
// downloaded.
func TestBuildFromVolume(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"of_a_user":  "debian-13.qcow2",
		"downloaded": "", // by another ProxmoxTemplate that no longer exists
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 1)
			if file == "" {
				image, err := template.NewImage(e.object.Spec.SourceImage, kubeCluster)
				e.Expect(err).NotTo(HaveOccurred())
				file = image.Name
			}
			volume := e.serveVolume("pve1", file)
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage = v1alpha1.SourceImage{Volume: volume} })
			p := e.process()
			report := p.reconcileUntilComplete()
			e.Expect(report.ImageID).To(Equal(file))
			e.Expect(e.config("pve1", report.Zones[0].VMID).Description()).To(HavePrefix("Karpenter managed template, made from " + volume))
			_, images, _ := e.createdObjects()
			e.Expect(images).To(ConsistOf("pve1/" + volume))
			if name == "downloaded" {
				return // when nothing refers to it, it is an unused image
			}
			p.deleteUntilGone()
			_, images, _ = e.createdObjects()
			e.Expect(images).To(ConsistOf("pve1/" + volume))
		})
	}
}

func TestBuildFromMissingVolume(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ volume, want string }{
		"missing_on_one_host": {
			volume: "local:import/debian-13.qcow2",
			want:   `pve2: spec.sourceImage.volume "local:import/debian-13.qcow2" does not exist on host pve2: storage local has local:import/debian-12.qcow2; upload it there, or set a volume that exists`,
		},
		"unknown_storage": {
			volume: "nfs:import/debian-13.qcow2",
			want:   `pve1, pve2: spec.sourceImage.volume "nfs:import/debian-13.qcow2" is on storage nfs, which is not on this host; it has local, local-lvm`,
		},
		"storage_without_import_content": {
			volume: "local-lvm:import/debian-13.qcow2",
			want:   `pve1, pve2: spec.sourceImage.volume "local-lvm:import/debian-13.qcow2" is on storage local-lvm, which does not take import content; run: pvesm set local-lvm --content import,`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, 2)
			e.serveVolume("pve1", "debian-13.qcow2")
			e.serveVolume("pve2", "debian-12.qcow2")
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage = v1alpha1.SourceImage{Volume: test.volume} })
			p := e.process()
			p.reconcileUntil(func(g Gomega) {
				g.Expect(p.report().Failing).To(BeTrue())
				g.Expect(p.report().Message).To(ContainSubstring(test.want))
			})
		})
	}
}
