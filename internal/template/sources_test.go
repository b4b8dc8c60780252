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

// serveVolume creates a volume that is not ours on a Host.
func (e *env) serveVolume(host, name string) string {
	e.T.Helper()
	request := proxmox.DownloadRequest{Host: host, Storage: "local", Name: name, URL: e.images.URL + "/other.qcow2"}
	e.Wait(e.Client.DownloadImage(e.T.Context(), request))
	return "local:import/" + name
}

// downloadFailures returns the events about failed downloads.
func (p *process) downloadFailures() []string {
	return p.events.Messages(v1alpha1.EventImageDownloadFailed)
}

func TestDownloadFromMirrors(t *testing.T) {
	t.Parallel()
	const (
		refused = "http://127.0.0.1:1/noble.qcow2"
		secret  = "http://me:hunter2@127.0.0.1:"
	)
	for name, test := range map[string]struct {
		urls []string
		// checksum is not that of the images.
		checksum       string
		event, failure string
	}{
		"first_works": {urls: []string{"URL/noble.img", "URL/missing.qcow2"}},
		"not_found": {
			urls:  []string{"URL/missing.qcow2", "URL/noble.img"},
			event: `host pve1: downloading the image: the server returned "404: Not Found" for spec.sourceImage.urls[0]; fix it, check with: curl -I URL/missing.qcow2; trying URL/noble.img`,
		},
		"unreachable": {
			urls: []string{refused, "URL/noble.img"},
			event: `host pve1: downloading the image: host pve1 cannot reach the server of spec.sourceImage.urls[0] (Connection refused); ` +
				`fix it, check on the host with: curl -I ` + refused + `; trying URL/noble.img`,
		},
		"none_works": {
			urls:    []string{refused, "URL/missing.qcow2"},
			event:   `trying URL/missing.qcow2`,
			failure: `pve1: no mirror of spec.sourceImage.urls works: downloading the image: host pve1 cannot reach the server of spec.sourceImage.urls[0] (Connection refused)`,
		},
		"wrong_checksum": {
			urls: []string{"URL/noble.qcow2", "URL/plucky.qcow2"}, checksum: strings.Repeat("0", 32),
			event:   `downloading the image: URL/noble.qcow2 does not match spec.sourceImage.checksum, its md5 is `,
			failure: `URL/plucky.qcow2 does not match spec.sourceImage.checksum`,
		},
		"passwords": {
			urls:    []string{secret + "1/a.img", secret + "2/a.img"},
			event:   "http://me:xxxxx@127.0.0.1:1/a.img",
			failure: "http://me:xxxxx@127.0.0.1:1/a.img",
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			e := newEnv(t, 1)
			withURL := func(text string) string { return strings.ReplaceAll(text, "URL", e.images.URL) }
			e.useMirrors(withURL(test.urls[0]), withURL(test.urls[1]))
			if test.checksum != "" {
				e.object.Spec.SourceImage.Checksum, e.object.Spec.SourceImage.ChecksumType = test.checksum, "md5"
			}
			p := e.process()
			if test.failure == "" {
				p.build()
				e.Expect(e.images.Fetched("/noble.img")).To(Equal(imageSize), "one download")
				e.Expect(e.images.Fetched("/missing.qcow2")).To(BeZero())
			} else {
				p.reconcileUntilMessage(And(ContainSubstring(withURL(test.failure)), Not(ContainSubstring("hunter2"))))
				e.Expect(p.report().Failing).To(BeTrue())
			}
			messages := p.downloadFailures()
			if test.event == "" {
				e.Expect(messages).To(BeEmpty())
			} else {
				e.Expect(messages).To(ContainElement(ContainSubstring(withURL(test.event))))
			}
			e.Expect(messages).NotTo(ContainElement(ContainSubstring("hunter2")))
			e.Expect(p.HasChecksumMismatch(uid)).To(Equal(test.checksum != ""))
		})
	}
}

// A mirror that does not respond is left for the next one, and the condition names both.
func TestDownloadFromUnresponsiveMirror(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.images.Hold("/silent.img")
		release := e.images.Hold("/noble.img")
		silent, noble := e.images.URL+"/silent.img", e.images.URL+"/noble.img"
		e.useMirrors(silent, noble)
		done := p.start(e.T.Context(), "pve1")
		e.Clock.Sleep(time.Minute)
		e.Expect(p.report().Message).To(Equal("pve1: downloading from " + silent))
		e.Clock.Sleep(10 * time.Second)
		e.Expect(p.report().Message).To(Equal("pve1: downloading from " + noble + ", because " + silent + " failed"))
		release()
		e.Expect(<-done).To(Succeed())
		p.build()
		e.Expect(p.downloadFailures()).To(ConsistOf(ContainSubstring("the server of spec.sourceImage.urls[0] did not respond to host pve1 within 1m0s")))
		e.Expect(e.imageFiles()).To(HaveLen(1))
	})
}

// A restarted controller waits for the download in progress and continues with the mirror
// after it.
func TestDownloadFromMirrorsAfterRestart(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		release := e.images.Hold("/missing.qcow2")
		missing, noble := e.images.URL+"/missing.qcow2", e.images.URL+"/noble.img"
		e.useMirrors(missing, noble)
		image, err := template.NewImage(e.object.Spec.SourceImage, kubeCluster)
		e.Expect(err).NotTo(HaveOccurred())
		_, err = e.Client.DownloadImage(e.T.Context(), proxmox.DownloadRequest{Host: "pve1", Storage: "local", Name: image.Name, URL: missing})
		e.Expect(err).NotTo(HaveOccurred())
		e.Sim.ResetRequests()
		done := p.start(e.T.Context(), "pve1")
		e.Clock.Sleep(10 * time.Second)
		e.Expect(p.report().Message).To(Equal("pve1: downloading from " + missing))
		release()
		e.Expect(<-done).To(Succeed())
		p.build()
		e.Expect(e.images.Fetched("/noble.img")).To(Equal(imageSize))
		e.Expect(p.downloadFailures()).To(HaveLen(1))
		e.Expect(e.Sim.CountRequests("POST", "/nodes/{node}/storage/{storage}/download-url")).To(Equal(1), "the download in progress is not repeated")
	})
}

func TestDownloadTalosImage(t *testing.T) {
	simulated(t, 1, func(e *env, p *process) {
		e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
			s.SourceImage = v1alpha1.SourceImage{Talos: &v1alpha1.TalosImage{Schematic: "376567988a", Version: "v1.11.3", Arch: "amd64", FactoryURL: e.images.URL + "/"}}
		})
		e.Expect(p.reconcileUntilComplete().ImageID).To(HavePrefix("talos-v1.11.3-nocloud-amd64-"))
		e.Expect(e.images.Fetched("/image/376567988a/v1.11.3/nocloud-amd64.qcow2")).To(Equal(imageSize))
	})
}

// A volume is imported and never deleted, also if its name is that of an image that we
// downloaded.
func TestBuildFromVolume(t *testing.T) {
	t.Parallel()
	for name, file := range map[string]string{
		"of_a_user":  "debian-13.qcow2",
		"downloaded": "", // by another ProxmoxTemplate that no longer exists
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
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
			e.Expect(e.imageFiles()).To(ConsistOf("pve1/" + volume))
			if name == "downloaded" {
				return // when nothing refers to it, it is an unused image
			}
			p.deleteUntilGone()
			e.Expect(e.imageFiles()).To(ConsistOf("pve1/" + volume))
		})
	}
}

func TestBuildFromMissingVolume(t *testing.T) {
	simulated(t, 2, func(e *env, p *process) {
		e.serveVolume("pve1", "debian-13.qcow2")
		e.serveVolume("pve2", "debian-12.qcow2")
		for volume, want := range map[string]string{
			"local:import/debian-13.qcow2": `pve2: spec.sourceImage.volume "VOLUME" does not exist on host pve2: ` +
				`storage local has local:import/debian-12.qcow2; upload it there, or set a volume that exists`,
			"nfs:import/debian-13.qcow2": `pve1, pve2: spec.sourceImage.volume "VOLUME" is on storage nfs, which is not on this host; it has local, local-lvm`,
			"local-lvm:import/debian-13.qcow2": `pve1, pve2: spec.sourceImage.volume "VOLUME" is on storage local-lvm, which does not take import content; ` +
				`run: pvesm set local-lvm --content import,`,
		} {
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage = v1alpha1.SourceImage{Volume: volume} })
			p.reconcileUntilMessage(ContainSubstring(strings.ReplaceAll(want, "VOLUME", volume)))
			e.Expect(p.report().Failing).To(BeTrue())
		}
	})
}
