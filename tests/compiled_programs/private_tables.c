/* The private tables answer what the public functions answer for the same fact: NVIDIA's libraries tell contexts and
 * streams apart by them. On two contexts, with three streams and the default streams of three threads. */
#include "driver.h"
#include <pthread.h>
#include <stdint.h>

typedef CUresult (*current_slot)(CUcontext *);
typedef CUresult (*context_slot)(CUcontext, unsigned long long *);
typedef CUresult (*token_slot)(CUcontext, CUstream, void **, unsigned char);
typedef CUresult (*stream_slot)(CUcontext, void *, unsigned long long *);

static const CUuuid library_support = {"\x21\x31\x8c\x60\x97\x14\x32\x48\x8c\xa6\x41\xff\x73\x24\xc8\xf2"};
static const CUuuid tools_storage = {"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc"};

static const void *const *table(const CUuuid *uuid)
{
    const void *found;
    OK(cuGetExportTable(&found, uuid));
    return found;
}

#define SLOT(type, uuid, number) ((type)(uintptr_t)table(&uuid)[number])

/* Each answer must replace both patterns: a success that writes nothing would keep one. */
static const unsigned long long patterns[] = {0xa5a5a5a5a5a5a5a5, 0x5a5a5a5a5a5a5a5a};

static unsigned long long number_of(CUcontext context, CUstream stream, int per_thread)
{
    unsigned long long numbers[2];
    for (int i = 0; i < 2; i++) {
        void *token = (void *)patterns[i];
        numbers[i] = patterns[i];
        OK(SLOT(token_slot, library_support, 51)(context, stream, &token, (unsigned char)per_thread));
        REQUIRE(token != (void *)patterns[i] && token != NULL);
        OK(SLOT(stream_slot, library_support, 39)(context, token, &numbers[i]));
    }
    REQUIRE(numbers[0] == numbers[1]);
    return numbers[0];
}

enum { CONTEXTS = 2, STREAMS = 3, THREADS = 3, MOST = 64 };

static CUcontext contexts[CONTEXTS];
static CUstream streams[CONTEXTS][STREAMS];
static unsigned long long seen[MOST];
static int count;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static void note_new(unsigned long long number)
{
    pthread_mutex_lock(&guard);
    for (int i = 0; i < count; i++) REQUIRE(seen[i] != number);
    REQUIRE(count < MOST);
    seen[count++] = number;
    pthread_mutex_unlock(&guard);
}

static unsigned long long legacy_id(CUstream stream)
{
    unsigned long long id = patterns[0];
    OK(cuStreamGetId(stream, &id));
    return id;
}

static unsigned long long per_thread_id(CUstream stream)
{
    CUresult (*twin)(CUstream, unsigned long long *);
    unsigned long long id = patterns[0];
    OK(cuGetProcAddress("cuStreamGetId", (void **)&twin, 12000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
    OK(twin(stream, &id));
    return id;
}

static void *look(void *first)
{
    for (int which = 0; which < CONTEXTS; which++) {
        CUcontext context = contexts[which];
        OK(cuCtxSetCurrent(context));
        for (int i = 0; i < 2; i++) {
            CUcontext current = (CUcontext)patterns[i];
            OK(SLOT(current_slot, tools_storage, 2)(&current));
            REQUIRE(current == context);
            unsigned long long id = patterns[i], public_id = patterns[i];
            OK(SLOT(context_slot, library_support, 4)(context, &id));
            OK(cuCtxGetId(context, &public_id));
            REQUIRE(id == public_id);
            OK(SLOT(context_slot, library_support, 4)(NULL, &id));
            REQUIRE(id == public_id);
        }
        for (int i = 0; i < STREAMS; i++) {
            REQUIRE(number_of(context, streams[which][i], 0) == legacy_id(streams[which][i]));
            REQUIRE(number_of(context, streams[which][i], 1) == legacy_id(streams[which][i]));
            if (first) note_new(number_of(context, streams[which][i], 0));
        }
        unsigned long long legacy = number_of(context, CU_STREAM_LEGACY, 0);
        unsigned long long own = number_of(context, CU_STREAM_PER_THREAD, 0);
        REQUIRE(number_of(context, NULL, 0) == legacy && number_of(context, NULL, 1) == own);
        REQUIRE(number_of(context, CU_STREAM_LEGACY, 1) == legacy && number_of(context, CU_STREAM_PER_THREAD, 1) == own);
        REQUIRE(legacy_id(NULL) == legacy && legacy_id(CU_STREAM_LEGACY) == legacy);
        REQUIRE(per_thread_id(NULL) == own && legacy_id(CU_STREAM_PER_THREAD) == own);
        if (first) note_new(legacy);
        note_new(own); /* a stream of this thread and this context */
    }
    return NULL;
}

int main(void)
{
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    OK(cuCtxCreate(&contexts[1], NULL, 0, 0));
    for (int which = 0; which < CONTEXTS; which++) {
        OK(cuCtxSetCurrent(contexts[which]));
        for (int i = 0; i < STREAMS; i++) OK(cuStreamCreate(&streams[which][i], CU_STREAM_NON_BLOCKING));
    }
    look(contexts);
    for (int i = 1; i < THREADS; i++) {
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, look, NULL) == 0);
        REQUIRE(pthread_join(thread, NULL) == 0);
    }
    /* Refused, and nothing is written. */
    void *token = NULL;
    unsigned long long id = patterns[0];
    FAILS(SLOT(token_slot, library_support, 51)(contexts[1], (CUstream)0xdead0, &token, 0));
    FAILS(SLOT(stream_slot, library_support, 39)(contexts[1], NULL, &id));
    FAILS(SLOT(context_slot, library_support, 4)((CUcontext)0xdead0, &id));
    REQUIRE(token == NULL && id == patterns[0]);
    OK(cuCtxSetCurrent(NULL));
    CUcontext none = contexts[0];
    OK(SLOT(current_slot, tools_storage, 2)(&none));
    REQUIRE(none == NULL);
    FAILS(SLOT(context_slot, library_support, 4)(NULL, &id));
    return passed();
}
