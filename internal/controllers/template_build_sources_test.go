// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
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
	response, err := (&http.Client{Transport: testenv.Web()}).Get(url)
	w.Expect(err).NotTo(HaveOccurred())
	defer func() { _ = response.Body.Close() }()
	h := sha256.New()
	w.Expect(io.Copy(h, response.Body)).Error().NotTo(HaveOccurred())
	return hex.EncodeToString(h.Sum(nil))
}

// Nothing is built before the checksum is read, and only an image that matches it is used.
func TestBuildWithChecksumURL(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t)
		server := testenv.ServeImages(t, 64<<10)
		content := "no checksums"
		sums := testenv.ServeWeb(t, http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(response, content) }))
		templates := manage(w)
		object := w.ManagedTemplate(server.URL+"/noble.img", func(o *v1alpha1.ProxmoxTemplate) { o.Spec.SourceImage.ChecksumURL = sums + "/SHA256SUMS" })
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix("False Building: spec.sourceImage.checksumURL has not been read yet"))
		resolve := func(text, want string) {
			w.T.Helper()
			content = text
			w.Clock.Advance(5 * time.Minute) // the file is read again after a mismatch
			controller := checksum.NewController(w.Kube, templates, w.Events, w.Clock, testenv.Web())
			w.Expect(controller.Reconcile(t.Context(), testenv.Reload(w, object))).Error().NotTo(HaveOccurred())
			w.Expect(testenv.Reload(w, object).Source().Checksum).To(Equal(want))
		}
		resolve(content, "")
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, HavePrefix(
			"False NodeTemplateClassResolutionError: reading spec.sourceImage.checksumURL "+sums+`/SHA256SUMS: it lists no checksum for "noble.img"`))
		w.Expect(server.Fetched("/noble.img")).To(BeZero())

		wrong := strings.Repeat("00", 32)
		resolve(wrong+"  noble.img\n", wrong)
		waitForCondition(w, object, v1alpha1.ConditionTemplateUpToDate, MatchRegexp("^False NodeTemplateClassResolutionError: (.*; )?pve1: downloading the image: "+
			"%s/noble.img does not match spec.sourceImage.checksumURL, its sha256 is [0-9a-f]{64}; fix checksumURL or url", server.URL))

		right := fetchSum(w, server.URL+"/noble.img")
		resolve(right+" *noble.img\n", right)
		waitUntilUpToDate(w, object)
		w.Expect(images(w)).To(HaveLen(1))
	})
}
