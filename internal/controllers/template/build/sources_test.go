// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/checksum"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// fetchSum returns the SHA256 sum of the content of a URL.
func fetchSum(w *testenv.Env, url string) string {
	w.T.Helper()
	request, err := http.NewRequestWithContext(w.T.Context(), http.MethodGet, url, nil)
	w.Expect(err).NotTo(HaveOccurred())
	response, err := http.DefaultClient.Do(request)
	w.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	h := sha256.New()
	_, err = io.Copy(h, response.Body)
	w.Expect(err).NotTo(HaveOccurred())
	return hex.EncodeToString(h.Sum(nil))
}

// Nothing is built before the checksum is read, and only an image that matches it is used.
func TestBuildWithChecksumURL(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	images := testenv.ServeImages(t, 64<<10)
	var content atomic.Pointer[string]
	content.Store(new("no checksums"))
	sums := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(response, *content.Load())
	}))
	t.Cleanup(sums.Close)
	manage(w)
	object := w.ManagedTemplate(images.URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = sums.URL + "/SHA256SUMS" })
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateUpToDate) }).WithTimeout(timeout).
		Should(HavePrefix("False Building: spec.sourceImage.checksumURL has not been read yet"))
	resolve := func(checksumWanted string) {
		w.T.Helper()
		w.Eventually(func(g Gomega) {
			// As after a change of the spec: the manager's own controller waits for an interval.
			controller := checksum.NewController(w.Kube, w.Templates(), w.Events, w.Clock)
			_, err := controller.Reconcile(t.Context(), testenv.Reload(w, object))
			g.Expect(err).NotTo(HaveOccurred())
			// After a conflict with another controller, nothing is written and no error is returned.
			g.Expect(testenv.Reload(w, object).StatusConditions().Get(v1alpha1.ConditionChecksumResolved)).NotTo(BeNil())
			g.Expect(object.Source().Checksum).To(Equal(checksumWanted))
		}).Should(Succeed())
	}
	resolve("")
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateUpToDate) }).WithTimeout(timeout).Should(HavePrefix(
		"False NodeTemplateClassResolutionError: reading spec.sourceImage.checksumURL " + sums.URL + `/SHA256SUMS: it lists no checksum for "noble.img"`))
	w.Expect(images.Fetched("/noble.img")).To(BeZero())

	wrong := strings.Repeat("00", 32)
	content.Store(new(wrong + "  noble.img\n"))
	resolve(wrong)
	w.Eventually(func() string { return condition(w, object, v1alpha1.ConditionTemplateUpToDate) }).WithTimeout(timeout).Should(MatchRegexp(
		"^False NodeTemplateClassResolutionError: (.*; )?pve1: downloading the image: %s/noble.img does not match spec.sourceImage.checksumURL, its sha256 is [0-9a-f]{64}; fix checksumURL or url", images.URL))

	right := fetchSum(w, images.URL+"/noble.img")
	content.Store(new(right + " *noble.img\n"))
	w.Clock.Advance(7 * time.Hour) // the file is read every 6 hours
	resolve(right)
	waitUntilUpToDate(w, object)
	volumes, err := w.Client.Volumes(t.Context(), "pve1", "local", "import")
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(volumes).To(HaveLen(1))
}
