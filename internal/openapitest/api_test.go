package openapitest_test

import (
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/stretchr/testify/require"

	"termkeeper/api"
)

// TestTheDocumentIsOpenAPI31 asks somebody else's judgement. It is here and not beside the API because the judge takes
// long to build.
func TestTheDocumentIsOpenAPI31(t *testing.T) {
	t.Parallel()
	parsed, err := libopenapi.NewDocument(api.Document())
	require.NoError(t, err)
	require.Regexp(t, `^3\.1\.`, parsed.GetVersion())
	judge, errs := validator.NewValidator(parsed)
	require.Empty(t, errs)
	valid, faults := judge.ValidateDocument()
	for _, fault := range faults {
		t.Log(fault.Error(), fault.Reason, fault.SchemaValidationErrors)
	}
	require.True(t, valid)
}
